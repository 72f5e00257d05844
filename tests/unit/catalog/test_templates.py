"""What a template is, and what its author is told when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jinja2 import UndefinedError
from jinja2.exceptions import SecurityError

from services.catalog.catalog import load_catalog
from services.catalog.errors import CatalogError
from services.catalog.rules import Channel
from services.catalog.templates import load_template, load_templates, part_environment

CONFIG = Path(__file__).parents[3] / "config"


def write(folder: Path, **files: str) -> Path:
    template = folder / "greeting"
    template.mkdir(exist_ok=True)
    defaults = {"template.yaml": "required: [name]\noptional: [title]\n"}
    for name, text in {**defaults, **{key.replace("__", "."): value for key, value in files.items()}}.items():
        (template / name).write_text(text, encoding="utf-8")
    return template


def faults(template: Path) -> list[tuple[str, int | None, str]]:
    with pytest.raises(CatalogError) as caught:
        load_template(template)
    return [(problem.file.name, problem.line, problem.reason) for problem in caught.value.problems]


def test_a_template_knows_what_it_needs_and_serves(tmp_path: Path) -> None:
    head = load_template(
        write(tmp_path, email__subject__j2="Hi {{ name }}", email__text__j2="Hello", sms__text__j2="{{ title }}")
    )
    assert head.name == "greeting"
    assert head.channels == {Channel.EMAIL, Channel.SMS}
    assert head.parts["email", "subject"] == "Hi {{ name }}"
    assert head.missing({"name": None}) == ["name"]
    assert head.missing({"name": "Ann"}) == []


def test_the_version_changes_with_any_file_and_with_nothing_else(tmp_path: Path) -> None:
    version = load_template(write(tmp_path, sms__text__j2="a")).version
    assert load_template(write(tmp_path, sms__text__j2="a")).version == version
    assert load_template(write(tmp_path, sms__text__j2="b")).version != version
    (tmp_path / "greeting" / ".sms.text.j2.swp").write_text("an editor's")
    (tmp_path / "greeting" / "sms.text.j2~").write_text("an editor's")
    assert load_template(write(tmp_path, sms__text__j2="a")).version == version


@pytest.mark.parametrize(
    ("files", "file", "line", "reason"),
    [
        ({"sms__text__j2": "a\n{{ name"}, "sms.text.j2", 2, "unexpected end"),
        ({"sms__text__j2": "a\n\n{{ nmae }}"}, "sms.text.j2", 3, "uses nmae"),
        ({"sms__text__j2": "{{ name | shout }}"}, "sms.text.j2", 1, "No filter named"),
        ({"sms__text__j2": "a\n{% include 'b' %}"}, "sms.text.j2", 2, "stands for itself"),
        ({"email__text__j2": "a"}, "greeting", None, "email.subject.j2 is missing"),
        ({"email__body__j2": "a", "sms__text__j2": "a"}, "email.body.j2", None, "is no part"),
        ({"webhook__text__j2": "a", "webhook__json__j2": "{}"}, "greeting", None, "both json and text"),
        ({}, "greeting", None, "has no part"),
        (
            {"template__yaml": "required: [a]\noptional: [a]", "sms__text__j2": "a"},
            "template.yaml",
            2,
            "a is required",
        ),
        ({"template__yaml": "noise: [b]", "sms__text__j2": "a"}, "template.yaml", 1, "b is neither"),
        ({"template__yaml": "needs: [b]", "sms__text__j2": "a"}, "template.yaml", 1, "not a known setting"),
    ],
)
def test_a_fault_is_told_with_file_and_line(
    tmp_path: Path, files: dict[str, str], file: str, line: int | None, reason: str
) -> None:
    found = faults(write(tmp_path, **files))
    assert any(name == file and at == line and reason in text for name, at, text in found), found


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('{"name": {{ name | tojson }},}', "renders no valid JSON"),
        ('{"names": [{% for n in name %}{{ n | tojson }},{% endfor %}]}', "renders no valid JSON"),
        ("{'name': {{ name | tojson }}}", "renders no valid JSON"),
        ('{"name": NaN}', "NaN is none"),
        ('{"title": {{ title }}}', "without the optional variables"),
        ('{"name": {{ name }}, {% if title %}"title": {{ title }}{% endif %}}', "without the optional variables"),
    ],
)
def test_a_webhook_that_could_never_be_json_is_found_when_it_is_loaded(
    tmp_path: Path, source: str, reason: str
) -> None:
    [(file, _, words)] = faults(write(tmp_path, webhook__json__j2=source))
    assert file == "webhook.json.j2"
    assert reason in words


@pytest.mark.parametrize(
    "source",
    [
        '{"name": "{{ name }}", "count": {{ name }}}',
        '{"name": {{ name | tojson }}{% if title %}, "title": {{ title.text.upper() | tojson }}{% endif %}}',
        '{"list": [{% for n in name.items %}{"x": {{ n.x | round }}}{% if not loop.last %},{% endif %}{% endfor %}]}',
        '{"map": { {% for k, v in name.items() %}"{{ k }}{{ loop.index }}": {{ v }}{{ "," if not loop.last }}{% endfor %} }}',
        '{"name": "{{ name | upper }} {{ name[0] }} {{ name | join(", ") }}", "sum": {{ name + 1 }}}',
        "{{ name | tojson }}",
        '{"name": "{{ "a" + name }}"}',  # wants a text: nobody can tell
    ],
)
def test_a_webhook_that_is_json_for_the_right_values_loads(tmp_path: Path, source: str) -> None:
    assert load_template(write(tmp_path, webhook__json__j2=source)).channels == {Channel.WEBHOOK}


def test_a_part_that_is_nested_without_an_end_is_told(tmp_path: Path) -> None:
    [(_, _, reason)] = faults(write(tmp_path, sms__text__j2="{{ " + "(" * 5_000 + "name" + ")" * 5_000 + " }}"))
    assert reason == "is nested too deep"


def test_variables_that_a_template_sets_itself_need_no_declaration(tmp_path: Path) -> None:
    source = "{% set n = name | length %}{% for c in name %}{{ loop.index }}{{ c }}{% endfor %}{{ n }}{{ range(3) }}"
    assert load_template(write(tmp_path, sms__text__j2=source)).channels == {Channel.SMS}


def test_an_optional_variable_may_be_left_out_but_a_misspelt_attribute_is_an_error(tmp_path: Path) -> None:
    head = load_template(write(tmp_path, sms__text__j2="{% if title %}{{ title }} {% endif %}{{ name.first }}"))
    template = part_environment("text").from_string(head.parts["sms", "text"])
    assert template.render(head.context({"name": {"first": "Ann"}})) == "Ann"
    with pytest.raises(UndefinedError):
        template.render(head.context({"name": {"frist": "Ann"}}))


def test_only_html_is_escaped(tmp_path: Path) -> None:
    assert part_environment("html").from_string("{{ a }}").render(a="<b>") == "&lt;b&gt;"
    assert part_environment("text").from_string("{{ a }}").render(a="<b>") == "<b>"


def test_a_template_that_reaches_for_the_interpreter_is_stopped() -> None:
    environment = part_environment("text")
    with pytest.raises(SecurityError):
        environment.from_string("{{ ''.__class__.__mro__ }}").render()


def test_every_template_of_the_repository_renders_with_what_it_requires() -> None:
    catalog = load_catalog(CONFIG)
    assert {"verify_code", "order_shipped", "alert", "spring_sale"} <= catalog.templates.keys()
    for head in catalog.templates.values():
        variables = {name: f'<{name}> "quoted"' for name in head.required}
        for (_, part), source in head.parts.items():
            text = part_environment(part).from_string(source).render(head.context(variables))
            assert text.strip()
            if part == "json":
                json.loads(text)


def test_a_scene_whose_template_is_not_there_or_cannot_serve_it_is_refused(tmp_path: Path) -> None:
    head = "version: 1\npolicies: {default: {}}\nchannels: {email: {}, sms: {}}\nscenes:\n"
    (tmp_path / "templates").mkdir()
    write(tmp_path / "templates", sms__text__j2="{{ name }}")

    def reasons(scenes: str) -> list[tuple[int | None, str]]:
        (tmp_path / "policies.yaml").write_text(head + scenes)
        with pytest.raises(CatalogError) as caught:
            load_catalog(tmp_path)
        return [(problem.line, problem.reason) for problem in caught.value.problems]

    assert reasons("  x: {template: nowhere}") == [(5, "scenes.x.template: there is no template named nowhere")]
    [(line, reason)] = reasons("  y: {}\n  x: {template: greeting, channels: [email]}")
    assert line == 6
    assert "serves none of them; it serves sms" in reason
    (tmp_path / "policies.yaml").write_text(head + "  greeting: {channels: [email, sms]}\n  without_template: {}")
    assert load_catalog(tmp_path).scene("greeting").template == "greeting"


def test_faults_of_all_templates_are_told_at_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "c").write_text("no folder")
    with pytest.raises(CatalogError) as caught:
        load_templates(tmp_path)
    assert len(caught.value.problems) == 3


def test_no_templates_are_no_fault(tmp_path: Path) -> None:
    assert load_templates(tmp_path / "nothing") == {}
