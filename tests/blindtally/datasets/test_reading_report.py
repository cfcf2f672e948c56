"""Missing values are left out and counted, and items that look alike are pointed out."""

import json

from tests.support.data_files import Read


def test_missing_values_are_left_out_with_their_number_and_first_line(read: Read) -> None:
    marks = ["", "  ", "NaN", "NaT", "<NA>", "NULL", "#N/A", r"\N", "N/A", "a\0b"]
    rows = "".join(f"u{place},{mark}\n" for place, mark in enumerate(marks))
    histograms, report = read(f"user,item\nv,fig\n{rows},fig\nw,fig\n")
    assert histograms == [{"fig": 1}, {"fig": 1}]
    assert report.rows == 13
    assert report.left_out["without an item"] == (2, 3)
    assert report.left_out["whose item is 'NaN'"] == (1, 5)
    assert report.left_out["whose item has a zero byte"] == (1, 12)
    assert report.left_out["without a user"] == (1, 13)
    assert sum(entry["rows"] for entry in report.as_json()["left_out"]) == 11
    assert read("a NaN\nNULL a\n")[0] == [{"a": 1}, {"a": 1}]  # baskets


def test_counts_of_zero_are_left_out_and_whole_numbers_read_in_each_notation(read: Read) -> None:
    counts, report = read("item,count\na,3.0\nb,1e3\nc,0\nd,\ne, 4\nf,1E+05\n")
    assert counts == {"a": 3, "b": 1000, "e": 4, "f": 100_000}
    assert report.left_out == {"whose count is 0": (1, 4), "without a count": (1, 5)}


def test_marks_that_may_be_words_are_items_with_a_note(read: Read) -> None:
    """NA is Namibia's code, and None is an answer."""
    histograms, report = read("user,country\n1,NA\n2,None\n3,FR\n")
    assert histograms == [{"NA": 1}, {"None": 1}, {"FR": 1}]
    assert report.notes == ["'NA', 'None': counted as items; remove those that are missing values"]
    histograms, report = read("user,item\nNone,a\nnan,a\nNone,b\n")
    assert histograms == [{"a": 1, "b": 1}, {"a": 1}]
    [note] = report.notes
    assert note.startswith("'None', 'nan': counted as one user each; remove")


def test_items_that_look_alike_are_counted_apart_with_a_note(read: Read) -> None:
    alike = ["pêche", "pe\u0302che", "fig", "fig ", "f\u200big", "a b", "a\u00a0b", "x\ny", "Fig"]
    rows = [json.dumps({"user": place, "item": item}) for place, item in enumerate(alike)]
    histograms, report = read("\n".join(rows))
    assert histograms == [{item: 1} for item in alike]
    twins, composed, broken = report.notes
    assert r"'pe\u0302che' and 'p\xeache' look alike and count apart" in twins
    assert "(such pairs: 4)" in twins
    assert "not in the Unicode form NFC: 1;" in composed
    assert "with a line break, inside quotation marks: 1" in broken
    assert read("user,item\n1,plain\n2,two words\n3,v1\n4,v1.0\n5,7.0\n")[1].notes == []
    (note,) = read("user,price\n1,7\n2,7.00\n")[1].notes
    assert note.startswith("'7.00' and '7' look alike")
