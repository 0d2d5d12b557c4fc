"""What the policy wrote of completions with tools, reasoning and other speakers, against tokens joined by hand."""

import json
from typing import Any

import pytest
from chat_tokenizers import BLOCKS, CHATML, PLAIN, chat_tokenizer

from gradstats.rollouts.turns import CompletionReader, plain_messages

ASKED = [{"role": "user", "content": "35 + 4?"}]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 35, "why": 'he "wins"'}}}
CALLED = '<tool_call>add {"a": 35, "why": "he \\"wins\\""}</tool_call>'


def assistant(content: Any = "", **further: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **further}


def answer(text: Any, **further: Any) -> dict[str, Any]:
    return {"role": "tool", "name": "add", "content": text, **further}


def by_hand(tokenizer, *parts):
    """Tokens and mask of texts, of which every second one is of others."""
    tokens, mask = [], []
    for number, part in enumerate(parts):
        ids = tokenizer(part)["input_ids"]
        tokens += ids
        mask += [number % 2 == 0] * len(ids)
    return tokens, mask


def read(messages, tokenizer=None, prompt=ASKED, **options):
    turns = messages if isinstance(messages, str) else plain_messages(messages)
    return CompletionReader(tokenizer or chat_tokenizer(), **options)(prompt, turns)


ANSWERED = "\n<|im_start|>user\n<tool_response>\n39\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
TWICE = ANSWERED.replace("</tool_response>", "</tool_response>\n<tool_response>\n40\n</tool_response>", 1)


@pytest.mark.parametrize(
    ("messages", "parts"),
    [
        ([assistant(tool_calls=[CALL]), answer("39"), assistant("It is 39.")],
         [CALLED + "<|im_end|>", ANSWERED, "It is 39."]),
        ([assistant("I add.", tool_calls=[CALL]), answer("39"), answer("40"), assistant("It is 39.")],
         ["I add." + CALLED + "<|im_end|>", TWICE, "It is 39."]),
        # Two calls, one after the other.
        ([assistant(tool_calls=[CALL]), answer("39"), assistant("Again.", tool_calls=[CALL]), answer("39"),
          assistant("39")],
         [CALLED + "<|im_end|>", ANSWERED, "Again." + CALLED + "<|im_end|>", ANSWERED, "39"]),
        # An environment that answers as a user.
        ([assistant("Which?"), {"role": "user", "content": "That."}, assistant("39")],
         ["Which?<|im_end|>", "\n<|im_start|>user\nThat.<|im_end|>\n<|im_start|>assistant\n", "39"]),
        # The budget ended with the tool's answer.
        ([assistant(tool_calls=[CALL]), answer("39")], [CALLED + "<|im_end|>", ANSWERED]),
        # Two messages of the policy in a row.
        ([assistant("One."), assistant("Two.")], ["One.<|im_end|>", "\n<|im_start|>assistant\n", "Two."]),
    ],
)  # fmt: skip
def test_what_others_wrote_is_masked(messages, parts):
    tokenizer = chat_tokenizer()
    completion = read(messages, tokenizer)
    assert (completion.tokens, completion.mask) == by_hand(tokenizer, *parts)
    assert completion.cut == (messages[-1]["role"] != "assistant")


def test_reasoning_is_a_part_of_what_the_policy_wrote():
    tokenizer = chat_tokenizer()
    for name in ("reasoning_content", "reasoning", "thinking"):  # the template knows the first
        completion = read([assistant("39.", **{name: "35 + 4"})], tokenizer)
        assert completion.tokens == tokenizer("<think>35 + 4</think>39.")["input_ids"]
        assert all(completion.mask)
        assert completion.rendered


@pytest.mark.parametrize(("cap", "cut"), [(None, True), (7, True), (500, False)])
def test_reasoning_without_an_answer_was_cut_unless_it_is_far_from_the_cap(cap, cut):
    tokenizer = chat_tokenizer()
    completion = read([assistant(None, reasoning_content="35 + 4")], tokenizer, cap=cap)
    whole = "<think>35 + 4" if cut else "<think>35 + 4</think>"
    assert (completion.tokens, completion.cut) == (tokenizer(whole)["input_ids"], cut)


@pytest.mark.parametrize(
    "calls",
    [
        [CALL],
        [{"function": CALL["function"]}],
        [CALL["function"]],
        json.dumps([CALL]),
        [json.dumps(CALL)],
        CALL,
        # What Parquet adds for an argument of another row's call.
        [{**CALL, "function": {"name": "add", "arguments": {**CALL["function"]["arguments"], "b": None}}}],
    ],
)
def test_a_call_may_be_an_object_or_json(calls):
    assert read([assistant(None, tool_calls=calls)]).text == CALLED


def test_arguments_of_a_call_may_be_json_in_the_policys_own_spelling():
    spelled = '{"a":35}'
    call = {"type": "function", "function": {"name": "add", "arguments": spelled}}
    assert read([assistant(tool_calls=[call])]).text == f"<tool_call>add {spelled}</tool_call>"
    # A template that writes JSON of whatever it is given would write a string of JSON.
    always = CHATML.replace("f.arguments if f.arguments is string else f.arguments | tojson", "f.arguments | tojson")
    assert read([assistant(tool_calls=[call])], chat_tokenizer(always)).text == '<tool_call>add {"a": 35}</tool_call>'
    # And one that adds texts needs JSON where an object is given.
    adds = CHATML.replace("f.arguments if f.arguments is string else f.arguments | tojson", "'' + f.arguments")
    assert read([assistant(tool_calls=[CALL])], chat_tokenizer(adds)).text == CALLED


def test_content_in_blocks_is_its_text():
    blocks = [{"type": "text", "text": "It is "}, {"type": "text", "text": "39."}]
    tokenizer = chat_tokenizer()
    assert read([assistant(blocks)], tokenizer).tokens == tokenizer("It is 39.")["input_ids"]
    tool = [assistant(tool_calls=[CALL]), answer([{"type": "text", "text": "39"}]), assistant("39")]
    assert read(tool, tokenizer).tokens == by_hand(tokenizer, CALLED + "<|im_end|>", ANSWERED, "39")[0]


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"type": "image"}, "a block of the type 'image', not text: a dump holds no images.*leave these rows out"),
        ({"type": "refusal"}, "a block of the type 'refusal', which is not text: give messages with text"),
        (5, "a block of the type int, which is not text"),
    ],
)
def test_other_blocks_are_refused(block, sentence):
    with pytest.raises(ValueError, match=sentence):
        plain_messages([assistant([{"type": "text", "text": "See"}, block])])


def test_a_template_that_takes_blocks_gets_them():
    tokenizer = chat_tokenizer(BLOCKS)
    completion = read([assistant("Which?"), {"role": "user", "content": "That."}, assistant("39")], tokenizer)
    between = "\n<|im_start|>user\nThat.<|im_end|>\n<|im_start|>assistant\n"
    assert completion.tokens == by_hand(tokenizer, "Which?<|im_end|>", between, "39")[0]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        (
            [assistant(tool_calls=[CALL])],
            r"tool calls cannot be rendered, since .* does not show its tool call \(add\)"
            ".*get_training_chat_template.*completion_mask to Rollouts.from_sequences",
        ),
        ([assistant("39", reasoning_content="35 + 4")], "reasoning_content cannot be rendered, .* its"),
        ([assistant(tool_calls=["add(35)"])], "does not show a tool call, which has no name"),
        ([answer("39"), assistant("39")], "begins with a message of the role 'tool', before the policy"),
    ],
)
def test_what_the_template_does_not_show_is_refused(messages, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(messages, chat_tokenizer(PLAIN))


def test_a_template_that_drops_a_tools_answer_is_refused():
    silent = CHATML.replace("+ m.content + '\\n</tool_response>'", "+ '</tool_response>'")
    assert silent != CHATML
    with pytest.raises(ValueError, match="message of the role 'tool' cannot be rendered after the policy's"):
        read([assistant(tool_calls=[CALL]), answer("39"), assistant("39")], chat_tokenizer(silent))


def test_a_template_that_shows_earlier_turns_otherwise_is_read_by_a_dummy_turn():
    # As Qwen3's, which writes an empty thought into the last answer alone.
    forgets = CHATML.replace("{{ m.content }}", "{{ '<think></think>' if loop.last }}{{ m.content }}")
    tokenizer = chat_tokenizer(forgets)
    completion = read([assistant("Which?"), answer("39"), assistant("39")], tokenizer)
    assert completion.tokens == by_hand(tokenizer, "Which?<|im_end|>", ANSWERED, "39")[0]


def test_a_call_may_end_with_a_token_of_its_own():
    calls = CHATML.replace("{{- '<|im_end|>\\n' }}", "{{- '<|call|>' if m.tool_calls else '<|im_end|>\\n' }}")
    assert calls != CHATML
    answered = ANSWERED.removeprefix("\n")
    for named in (None, [2 + 256, 3 + 256]):  # the ids of <|im_end|> and <|call|>
        tokenizer = chat_tokenizer(calls)
        completion = read([assistant(tool_calls=[CALL]), answer("39"), assistant("39")], tokenizer, eos_token_ids=named)
        assert completion.tokens == by_hand(tokenizer, CALLED + "<|call|>", answered, "39")[0]


def test_a_turn_may_end_with_the_token_that_begins_the_next():
    # As GLM's: nothing closes a turn, and the policy is stopped at the token of the next speaker.
    opens = PLAIN.replace("+ '<|im_end|>\\n'", "").replace("'<|im_start|>' + m.role", "('<|call|>' + m.role)")
    tokenizer = chat_tokenizer(opens, eos="<|eos|>")
    turns = [assistant("Which?"), {"role": "user", "content": "That."}, assistant("39")]
    completion = read(turns, tokenizer, eos_token_ids=[256 + 4, 256 + 3])
    between = "user\nThat.<|im_start|>assistant\n"
    assert completion.tokens == by_hand(tokenizer, "Which?<|call|>", between, "39")[0]


# What a trainer decodes without special tokens.
SPOKEN = f"I add.{CALLED}\nuser\n<tool_response>\n39\n</tool_response>\nassistant\nIt is 39."


def test_turns_in_a_text_are_refused_unless_it_is_known_who_wrote_them():
    with pytest.raises(ValueError, match="holds turns of other speakers .*other_turns='masked'.*other_turns='written'"):
        read(SPOKEN)
    with pytest.raises(ValueError, match="holds turns of other speakers"):
        read([assistant(SPOKEN)])
    tokenizer = chat_tokenizer()
    parts = [f"I add.{CALLED}<|im_end|>", ANSWERED, "It is 39."]
    tokens, mask = by_hand(tokenizer, *parts)
    completion = read(SPOKEN, tokenizer, other_turns="masked")
    assert (completion.tokens, completion.mask) == (tokens, mask)
    completion = read(SPOKEN, tokenizer, other_turns="written")
    assert (completion.tokens, completion.mask) == (tokens, [True] * len(tokens))


def test_a_template_that_shows_an_answer_only_after_a_call_is_read_by_a_dummy_call():
    tool = "{% if m.role == 'tool' %}"
    strict = CHATML.replace(
        tool, tool + "{% if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('') }}{% endif %}"
    )
    tokenizer = chat_tokenizer(strict)
    completion = read(SPOKEN, tokenizer, other_turns="masked")
    assert (completion.tokens, completion.mask) == by_hand(
        tokenizer, f"I add.{CALLED}<|im_end|>", ANSWERED, "It is 39."
    )


def test_turns_that_do_not_come_back_from_the_template_are_refused():
    # A template that writes answers as JSON, whose escapes the text already has.
    escapes = CHATML.replace(r"<tool_response>\n' + m.content", r"<tool_response>\n' + m.content | tojson")
    assert escapes != CHATML
    tokenizer = chat_tokenizer(escapes)
    answered = ANSWERED.replace("39", '"39"')
    tokens, mask = by_hand(tokenizer, f"I add.{CALLED}<|im_end|>", answered, "It is 39.")
    completion = read(SPOKEN.replace("39", '"39"', 1), tokenizer, other_turns="masked")
    assert (completion.tokens, completion.mask) == (tokens, mask)
    with pytest.raises(ValueError, match="not as the tokenizer's chat template writes them"):
        read(SPOKEN.replace("39", r'"3\n9"', 1), tokenizer, other_turns="masked")


def test_speakers_in_one_of_several_messages_are_refused():
    turns = [assistant(SPOKEN), {"role": "user", "content": "Sure?"}, assistant("Yes.")]
    for other in (None, "masked"):
        with pytest.raises(ValueError, match="holds turns of other speakers"):
            read(turns, other_turns=other)
    assert SPOKEN in read(turns, other_turns="written").text


def test_several_answers_in_a_text_are_told_apart_by_the_template():
    apart = CHATML.replace(
        "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}", "{%- if true %}"
    ).replace("{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}", "{%- if true %}")
    tokenizer = chat_tokenizer(apart)
    one = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>"
    between = one.format(39) + one.format(40) + "\n<|im_start|>assistant\n"
    parts = ["I add.<|im_end|>", between, "It is 39."]
    tokens, mask = by_hand(tokenizer, *parts)
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    completion = read(text, tokenizer, other_turns="masked")
    assert (completion.tokens, completion.mask) == (tokens, mask)


@pytest.mark.parametrize(
    "text",
    [
        "I call.\nuser\n39\nassistant\nIt is 39.",
        "I call.\ntool\n39\nmodel\nIt is 39.",
        "<tool_response>39</tool_response>",
    ],
)
def test_speakers_are_noticed_whatever_the_template(text):
    tokenizer = chat_tokenizer(None)
    with pytest.raises(ValueError, match="holds turns of other speakers"):
        read(text, tokenizer)
    with pytest.raises(ValueError, match="not as the tokenizer's chat template writes them"):
        read(text, tokenizer, other_turns="masked")
    assert read(text, tokenizer, other_turns="written").tokens == tokenizer(text)["input_ids"]


@pytest.mark.parametrize("text", ["The user said 39 to the assistant.", "user\n39", "assistant\n39", "a user\n b"])
def test_words_alone_are_no_speakers(text):
    assert read(text).tokens == chat_tokenizer()(text)["input_ids"]


def test_a_text_that_shows_its_end_has_ended():
    for text in ("39<|im_end|>", "39<|im_end|>\n"):
        completion = read(text)
        assert (completion.text, completion.end, completion.ended) == ("39", 258, True)
    completion = read("39")
    assert (completion.end, completion.ended) == (None, False)


@pytest.mark.parametrize(
    ("n_tokens", "cap", "expected"),
    # Eight tokens of two letters: any number from 8 to 16 may have been drawn.
    [(8, 9, True), (8, 12, True), (8, 13, False), (100, 105, True), (100, 107, False), (8, 8, True)],
)
def test_a_completion_close_to_the_cap_may_have_been_cut(n_tokens, cap, expected):
    reader = CompletionReader(chat_tokenizer(merges=[("a", "b")]), cap=cap)
    completion = reader(ASKED, "ab" * n_tokens)
    assert len(completion.tokens) == n_tokens
    assert reader.may_be_cut(completion) == expected


@pytest.mark.parametrize(
    ("text", "merges", "cap", "expected"),
    [
        ("abababab", [], 9, False),
        ("abababaxy", [("x", "y")], 9, True),  # one of eight can be divided, into two
        ("abababaxy", [("x", "y")], 10, False),
    ],
)
def test_tokens_that_cannot_be_divided_decide_how_a_completion_ended(text, merges, cap, expected):
    reader = CompletionReader(chat_tokenizer(merges=merges), cap=cap)
    assert reader.may_be_cut(reader(ASKED, text)) == expected


def test_settings_out_of_range(unchecked):
    with pytest.raises(ValueError, match="other_turns is 'mask': give 'masked' where tools"):
        CompletionReader(chat_tokenizer(), other_turns="mask")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="max_completion_length is 0: give the trainer's, at least 1"):
        CompletionReader(chat_tokenizer(), cap=0)
