// The API by Swagger UI, which asks nobody but this service.
"use strict";

SwaggerUIBundle({
  url: document.getElementById("docs").dataset.openapi,
  domNode: document.getElementById("docs"),
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  presets: [SwaggerUIBundle.presets.apis],
});
