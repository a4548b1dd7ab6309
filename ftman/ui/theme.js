// Runs before the first paint, so that the page never flashes in the other theme.
const chosen = localStorage.getItem("ft.theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
