"""Riddles and homonyms that the check of the prose finds."""

from scripts.prose_check import problems, rates


def test_a_docstring_that_begins_with_a_question_word_is_told_with_its_line() -> None:
    source = 'class A:\n    """Whether it rains."""\n\ndef f():\n    """Return the sky."""\n'
    source += '\ndef g():\n    """Yield what falls."""\n'
    assert list(problems({"tests/a.py": source})) == [
        "tests/a.py:2: Whether it rains.",
        "tests/a.py:8: Yield what falls.",
        "2 of 3 docstrings begin with a question word; begin with a verb or a noun",
    ]


def test_attributes_have_docstrings() -> None:
    source = 'A = 1\n"""How long it rains."""\n\nclass B:\n    c: int = 2\n    """Seconds."""\n'
    assert list(problems({"tests/a.py": source})) == [
        "tests/a.py:2: How long it rains.",
        "1 of 2 docstrings begin with a question word; begin with a verb or a noun",
    ]


def test_fewer_than_two_percent_pass() -> None:
    source = '"""How it goes."""\n' + "\n".join(f'def f{n}():\n    """Return {n}."""' for n in range(60))
    assert list(problems({"scripts/a.py": source})) == []


def test_a_class_name_means_one_thing_in_a_package() -> None:
    same = "class Row: ...\nclass _Row: ...\n"
    assert list(problems({"runner/a.py": same, "runner/b.py": same, "jobs/c.py": same})) == [
        "class Row has two meanings: runner/a.py, runner/b.py; rename one"
    ]
    assert list(problems({"tests/a.py": same, "tests/b.py": same})) == []


def test_rates_of_a_project_are_a_row_of_the_table() -> None:
    riddle = '"""Return what is there."""  # noqa: D400\nclass Row: ...\n'
    assert rates({"a/x.py": riddle, "a/y.py": "class Row: ...\n"}) == "2 | 3 | 1 | 100.0 % | 1 | 333.3"
