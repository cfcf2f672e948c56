"""Columns are found by their names, and where two readings are plausible the reader asks."""

from typing import Any

import pytest

from blindtally.datasets.cells import DataError
from tests.support.data_files import Read

_ASKS = "Name them: --column item=NAME"
_NO_HEADER = "the first line must be a header"


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ("item,rank,count\nfig,1,4\npear,2,3\n", None, {"fig": 4, "pear": 3}),
        ("item,user\na,1\nb,2\na,2\n", None, [{"a": 1}, {"a": 1, "b": 1}]),
        ("user_id,code\n1,404\n2,500\n1,404\n", None, [{"404": 2}, {"500": 1}]),
        ("user,item,code,count\nu,a,1,2\nu,b,900,1\n", None, [{"a": 2, "b": 1}]),
        ("User ID,Product Name\n1,a\n2,b\n", None, [{"a": 1}, {"b": 1}]),
        ("clientId,searchTerm,N\n1,a,2\n2,b,1\n", None, [{"a": 2}, {"b": 1}]),
        ("word,count,users\nthe,9,3\nof,8,4\n", None, {"the": 9, "of": 8}),
        ("item,count,n\na,1,2\n", None, {"a": 1}),
        (",count\na,3\n", None, {"a": 3}),
        ("user,item,\n1,a,\n2,b,\n", None, [{"a": 1}, {"b": 1}]),
        ('user,item\n1,"=""0012"""\n2,="0012"\n', None, [{"0012": 1}, {"0012": 1}]),
        ("word,hits,rank\na,9,1\n", None, {"a": 9}),
        ("word,hits,views\na,9,1\n", "count=hits", {"a": 9}),
        (",user,item\n0,u,a\n1,u,b\n", None, [{"a": 1, "b": 1}]),
        ("day,User,country,word\n1,0,FR,a\n1,1,FR,b\n", None, [{"a": 1}, {"b": 1}]),
        ("userId,movieId,rating,timestamp\n1,7,4,99\n", None, [{"7": 1}]),
        ("user_id,session_id,item\n1,7,a\n", None, [{"a": 1}]),
        ("who,item\nu,a\nu,b\n", "user=who", [{"a": 1, "b": 1}]),
        ("who,item\nu,a\nu,b\n", "user=", [{"a": 1}, {"b": 1}]),
        (",user,item\n7,u,a\n9,u,b\n", None, [{"a": 1, "b": 1}]),
        (",item\n0,a\n1,b\n", None, [{"a": 1}, {"b": 1}]),
        (",item\n5,a\n5,b\n", "item=item,user=,count=", [{"a": 1}, {"b": 1}]),
        ("who,what,k\nu,a,3\n", "item=what,user=who,count=k", [{"a": 3}]),
        ("who,what,k\nu,a,3\n", "count=k,item=what", {"a": 3}),
        ("a,b;item=x;c\nu;i;3\n", "user=a,b,item=item=x,count=c", [{"i": 3}]),
        ("user,item,k\nu,a,3\n", "count=k", [{"a": 3}]),
        ("user,item,k\nu,a,3\n", "count=", [{"a": 1}]),
        ("region,item,count\nn,a,1\ns,a,2\n", "user=", {"a": 3}),
        ("region,item,count\nn,a,1\ns,a,2\n", "user=region", [{"a": 1}, {"a": 2}]),
        ("0,1\na,3\n", "item=0,count=1", {"a": 3}),
        ("user,country,word\nu,FR,a\n", "country", [{"FR": 1}]),
        ("query\nripe pear\nfig\n", "query", [{"ripe pear": 1}, {"fig": 1}]),
        ("query\nripe pear\nfig\n", "item=query", [{"ripe pear": 1}, {"fig": 1}]),
        ("user,order number\nu,1\nv,3\n", None, [{"1": 1}, {"3": 1}]),
        ("user,item\nu,a|b\nv,b\n", "item=item", [{"a|b": 1}, {"b": 1}]),
        ("user,status\nu,200\nv,404\n", None, [{"200": 1}, {"404": 1}]),
    ],
)
def test_columns_are_those_with_known_names_or_named_by_the_caller(
    read: Read, content: str, column: str | None, expected: Any
) -> None:
    assert read(content, column)[0] == expected


@pytest.mark.parametrize(
    ("content", "column", "fault"),
    [
        ("product,price\nfig,3\n", None, "for users or for counts; the columns are 'product'"),
        ("fruit,score\nfig,3\n", None, "no name of a column stands for items"),
        ("who,item\nu,a\n", None, _ASKS),
        ("user;age\n1;32,5\n2;7,0\n", None, "'32,5' in column 'age' is a list, or 32.5 is meant"),
        ("user,item\n8.80E+12,a\n", None, "several users look like one: save it with all digits"),
        ("who,item\nu,a\n", "item", _ASKS),
        ("user,item,k\nu,a,3\n", None, "column 'k' may be the count of the item"),
        *(
            (f"user,item,k\nu,a,{first}\nu,a,4\n", None, "column 'k' may be the count of the item")
            for first in ("3.0", '"1,234"', "NaN", "-", "")
        ),
        ("n,total,item\n1,2,a\n", None, "2 columns may hold the counts"),
        ("query,clicks,impressions\na,4,40\n", None, "2 columns may hold the counts"),
        ("item_id,item_name,count\n1,a,3\n", None, "2 columns may hold the items"),
        ("user,item,item\nu,a,b\n", None, "2 columns may hold the items"),
        ("user,x,x\nu,a,b\n", "x", "2 columns are named 'x': give them different names"),
        ("domain,ref_subnets,ref_ips\na.org,5,50\n", None, _ASKS),
        (",item\na,40\nb,25\n", None, "column 1 has no name, and may hold items"),
        ("item, \na,40\nb,25\n", None, "column 2 has no name"),
        (",item\nu,a\nu,b\n", None, "column 1 has no name"),
        ("user,item,\nu,a,4\nu,b,4\n", None, "column 3 has no name"),
        ('{"": "a", "item": 40}\n{"": "b", "item": 25}\n', None, "column 1 has no name"),
        ("n,user,item\n1,u,a\n2,u,b\n3,v,a\n", None, "'n' may be the count of the item"),
        ("n,item\n0,a\n1,b\n2,a\n", None, _ASKS),
        ("text,word_count\nso it goes,3\n", None, _ASKS),
        ("customer,product,total\nu,a,20\n", None, "'total' may be the count of the item"),
        ("item,count\na,4\nb,3\nc,2\nGrand Total,9\n", None, "'Grand Total', is the sum of all"),
        ("item,count\nAll,9\na,4\nb,3\nc,2\n", None, "the first item, 'All', is the sum of all"),
        ('user,items\nu,"a, b"\nv,"b, c"\n', None, "column 'items' has a list: write a row"),
        ("user,item\nu,\"['a', 'b']\"\n", None, "column 'item' has a list: write a row"),
        *(
            (f"user,{name}\nu,1\nv,3\n", None, f"row's items: write .* '?item={name}'? if each")
            for name in ("items", "Number of Orders", "# items", "total", "numVisits", "orders_sum")
        ),
        *(
            ("user,item\nu," + cells.replace("~", "\nv,"), None, "a cell of .* has a list")
            for cells in (
                *("a|b~c|d~e", "C;C++~R;Go~D", '"a, b"~"b, c"~a', "a / b~b / c~d", "a b~b c~a c"),
                *('"a\nb"~"b\nc"~a', "<c#><wpf>~<go><c#>~<go>", "#a #b~#c #d~#e"),
            )
        ),
        ("region,item,count\nn,a,1\ns,a,2\n", None, "line 3: item 'a' comes again"),
        ("apple,4000\npear,2500\n", None, f"line 1: '4000' is a number, .* {_NO_HEADER}"),
        ("1,2\n3,4\n", None, _NO_HEADER),
        ("total,4000\nitem,300\n", None, _NO_HEADER),
        ("u0,apple\nu1,pear\n", None, _ASKS),
        (
            "user,item\nu,a\n",
            "item=item,foo=3",
            "no column is named 'item,foo=3'; the columns are 'user'",
        ),
        ("user,word\nu,a\n", "item", "no column is named 'item'"),
        ('"foo"\nfig\n', None, "the columns are 'foo'"),
        ("user item\nu a\n", None, "line 1: 'user item' looks like a header"),
        ("user~item\nu~a\n", None, "line 1: 'user~item' looks like a header"),
        ("Report\n\nuser,item\nu,a\n", None, "line 3: 'user,item' looks like a header"),
    ],
)
def test_unclear_columns_are_refused_with_the_option_that_names_them(
    read: Read, content: str, column: str | None, fault: str
) -> None:
    with pytest.raises(DataError, match=fault):
        read(content, column)


@pytest.mark.parametrize(
    "items",
    [
        *("Paris, FR~Lyon, FR~Nice, FR~Rome, IT", "Paris, Texas~Texas~Rome~Paris~Oslo~Lima"),
        *("ripe pear~pear~red fig~green plum", "New York~New Delhi~East York"),
        *("Firefox (X11; Linux)~Firefox (Win; x64)", "a.org/?x=1,2~a.org/?x=2~b.org/a|b"),
    ],
)
def test_texts_with_separators_are_items(read: Read, items: str) -> None:
    rows = "".join(f'"{item}","{item}"\n' for item in items.split("~"))
    assert read(f"user,item\n{rows}")[0] == [{item: 1} for item in items.split("~")]


def test_the_report_states_the_columns_and_the_meaning_of_a_row(read: Read) -> None:
    _, report = read("user_id,day,item\n1,2,404\n")
    assert report.columns == {"item": "item", "user": "user_id", "count": None}
    assert report.unused == ["day"]
    [line] = report.lines()
    assert line.endswith(
        "a table separated by commas with item 'item', user 'user_id'; not used: 'day'; each user "
        "is a device, each row one item; 1 row"
    )
    _, report = read("query\nripe pear\n")
    first, second = report.lines()
    assert "baskets without a header; each line is a device" in first
    assert "'query' in line 1 counts as an item: if it is a header, add --column query" in second
