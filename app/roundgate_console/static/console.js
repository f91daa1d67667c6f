// Shows that a page cannot update itself, until an update succeeds again.
for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"])
  document.addEventListener(name, () => document.body.classList.add("is-stale"));
document.addEventListener("htmx:afterOnLoad", event => {
  if (event.detail.successful) document.body.classList.remove("is-stale");
});
