"use strict";
(() => {
  document.querySelectorAll("table.sortable").forEach((table) => {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const status = table.closest(".scroll").nextElementSibling;
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
  });
})();
