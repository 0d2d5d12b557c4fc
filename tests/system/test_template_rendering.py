"""What the worker process renders of a chat template."""

from gradstats.system.template_rendering import render


def test_the_length_of_a_prompt():
    template = "{{ name }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert render(template, [{"role": "user", "content": "abc"}], {"name": "xy"}) == 5
