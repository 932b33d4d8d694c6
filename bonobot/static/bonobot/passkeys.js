// Show that no passkey was used or added: allauth's script only logs it.
"use strict";

document.addEventListener("allauth.error", (event) => {
  event.preventDefault();
  document.getElementById("passkey-error").hidden = false;
});
