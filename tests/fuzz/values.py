"""Texts, numbers and lines of YAML that break readers which are not careful."""

import math

# fmt: off
TEXTS = (
    "", " ", ".", "..", "../../../../tmp/outside", "/etc/passwd", "a/b", "a\\b", "C:\\a", "~", "a\nb", "a\rb\tc",
    "\0", "a\0b", "\x1b[31mred\x1b[0m", "\x7f\x85\u2028\u2029", "\u202etxt.exe", "\ud800", "\udcff",
    "\U0010ffff\ufffe", "e\u0301" * 40, "<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>",
    "</title></style></svg><script>alert(1)</script>", "]]><!--", "--><svg onload=alert(1)>", "javascript:alert(1)",
    "&lt;script&gt;&#0;", "$x^{$", "%s%n{}{0.__class__}", "nan", "1e999", "true", "null", "x" * 300, "x" * 20_000,
    "\N{ARABIC LETTER ALEF}" * 70,
)
NUMBERS = (
    0, -1, 1, 2, 3.5, -0.0, 1e-320, 1e18, 1e19, -1e18, 1e308, -1e308, math.inf, -math.inf, math.nan, 2**31, 2**32,
    2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 10**4000,
)
YAML_TEXTS = (
    "a: &x [1, 2]\nb: *x\n", "a: &a [x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\n", "a: &a [*a]\n",
    "!!python/object/apply:os.system ['touch outside']\n", "name: !!python/name:os.system ''\n",
    "name: !!binary aGVsbG8=\n", "a: !!set {x, y}\n", "? [a, b]\n: c\n", "? {a: b}\n: c\n",
    "<<: {name: a}\nname: b\n", "name: a\nname: b\n", "when: 2001-12-14t21:59:43.10-05:00\n", "when: 2001-99-99\n",
    "a: 190:20:30\n", "a: 0x" + "f" * 6000 + "\n", "a: " + "9" * 100_000 + "\n", "a: 1e" + "9" * 50 + "\n",
    "[" * 5000, "{a: " * 5000, "- " * 5000 + "a\n", "a: |\n" + "  x\n" * 5000, "%YAML 9.9\n---\na: b\n",
    "--- a\n--- b\n", "\t a: b\n", 'a: "\\ud800"\n', 'a: "\\0"\n', 'a: "\\U00110000"\n', 'a: "%zz"\n',
    "a: !<tag:yaml.org,2002:int> x\n", "a: !!int x\n", "a: !!float y\n", "a: !!timestamp z\n", "a: ''\n" * 3,
    "\ufeffname: a\n", "a: \x07\n", "base: config.yaml\n", "base: ../in/./config.yaml\n", "base: /dev/zero\n",
    "base: /etc/passwd\n", "base: .\n", "base: [quickstart]\n", "base: quickstart\nrounds: 9\n",
)
# fmt: on
