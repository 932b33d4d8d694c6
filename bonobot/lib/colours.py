"""The colours of the admin, for settings: the theme takes them from there."""

PRIMARY = {
    "50": "oklch(98% 0.016 175)",
    "100": "oklch(95% 0.04 175)",
    "200": "oklch(90% 0.075 175)",
    "300": "oklch(83% 0.11 176)",
    "400": "oklch(74% 0.125 178)",
    "500": "oklch(65% 0.118 180)",
    "600": "oklch(53% 0.098 182)",
    "700": "oklch(45% 0.083 184)",
    "800": "oklch(38% 0.067 186)",
    "900": "oklch(32% 0.053 188)",
    "950": "oklch(22% 0.038 190)",
}
