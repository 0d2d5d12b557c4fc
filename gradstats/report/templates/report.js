"use strict";
(() => {
  // A link to a folded prompt or figure opens it.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = target && target.closest("details");
    if (folded && !folded.open) {
      folded.open = true;
      target.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", unfold);
  unfold();

  const find = document.getElementById("find");
  if (find) {
    document.getElementById("search").hidden = false;
    const prompts = [...document.querySelectorAll("details.prompt")].map((prompt) => ({
      prompt,
      asked: (prompt.querySelector(".asked") ?? prompt.querySelector(".words")).textContent.toLowerCase(),
      completions: [...prompt.querySelectorAll(".completion")].map((element) => ({
        element,
        text: element.querySelector(".text").textContent.toLowerCase(),
      })),
    }));
    find.addEventListener("input", () => {
      const words = find.value.trim().toLowerCase();
      let nPrompts = 0;
      prompts.forEach(({ prompt, asked, completions }) => {
        const found = completions.filter(({ text }) => text.includes(words));
        const whole = asked.includes(words);
        const visible = found.length > 0 || whole;
        completions.forEach((one) => { one.element.hidden = !whole && !found.includes(one); });
        prompt.hidden = !visible;
        prompt.open = visible && words !== "";
        nPrompts += visible;
      });
      document.getElementById("found").textContent =
        words === "" ? "" : `found in ${nPrompts} of ${prompts.length} prompts`;
    });
  }

  const dialog = document.getElementById("zoom");
  const stage = dialog.querySelector(".stage");
  let home = null;
  let size = 1;
  const resize = (factor) => {
    size = Math.min(8, Math.max(0.5, size * factor));
    stage.firstElementChild.style.width = `${100 * size}%`;
  };
  document.querySelectorAll("button.zoom").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => {
      home = button.closest("figure").querySelector(".drawing");
      const drawing = home.firstElementChild;
      // Its place is kept, so that the page does not jump behind the dialog.
      home.style.minHeight = `${home.offsetHeight}px`;
      stage.append(drawing);
      size = 1;
      dialog.showModal();
      // A figure is shown whole at first.
      const box = drawing.getBoundingClientRect();
      resize(Math.min(1, stage.clientHeight / box.height));
    });
  });
  dialog.querySelectorAll("[data-zoom]").forEach((button) => {
    button.addEventListener("click", () => resize(Number(button.dataset.zoom)));
  });
  document.getElementById("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    const drawing = stage.firstElementChild;
    drawing.style.width = "";
    home.append(drawing);
    home.style.minHeight = "";
  });
})();
