"use strict";
(() => {
  const table = document.getElementById("variance-table");
  if (table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const status = document.getElementById("sorted");
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        const key = (row) => row.cells[column].dataset.key;
        const compare = (a, b) => {
          const [x, y] = [key(a), key(b)];
          // What is not resolved stays last, whichever way the column is sorted.
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = column === 0 ? x.localeCompare(y) : Number(x) - Number(y);
          return descending ? -order : order;
        };
        body.append(...[...body.rows].sort(compare));
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        status.textContent = `sorted by ${head.textContent.trim()}, ${descending ? "descending" : "ascending"}`;
      });
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
