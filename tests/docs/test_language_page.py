"""The reference shows an error as the tool prints it."""

import re

from eulerstack.paths import find_preset


def test_its_error_is_the_one_that_is_printed(blocks, place, shell):
    (shown,) = (b.text for b in blocks("docs/language.md") if (b.heading, b.language) == ("errors", ""))
    file = place / re.match(r"[^:]+", shown)[0]
    file.parent.mkdir()
    text = find_preset("llm_0p1b_mistral").read_text()
    assert len(re.findall(r"\bwindow:", text)) == 1
    file.write_text(re.sub(r"\bwindow:", "windw:", text))
    assert shell(f"eulerstack validate {file.relative_to(place)}", status=1) == shown
