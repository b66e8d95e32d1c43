//! Tests of parsing and filling a prompt file.

use proptest::prelude::*;
use toolgate_contract::{MessageRole, PromptArgument, PromptArguments};

use super::super::prompt_file::PromptFile;
use super::super::template::FilledPromptPart;
use super::to_arguments;
use crate::front_matter::FileErrorWithLine;

fn parse(head: &str, body: &str) -> Result<PromptFile, FileErrorWithLine> {
    PromptFile::parse("p", &format!("---\n{head}---\n{body}"))
}

/// Fills the template `body`, which may use the arguments `a` and `b`.
fn fill(body: &str, arguments: &[(&str, &str)]) -> Vec<(MessageRole, FilledPromptPart)> {
    let file = parse("arguments: [{name: a}, {name: b}]\n", body).expect("the file is valid");
    file.template.fill(&to_arguments(arguments))
}

/// Fills the template `body` like [`fill`], and returns its text. Panics unless it is a single
/// text.
fn fill_text(body: &str, arguments: &[(&str, &str)]) -> String {
    match &fill(body, arguments)[..] {
        [(MessageRole::User, FilledPromptPart::Text(text))] => text.clone(),
        other => panic!("{other:?}"),
    }
}

fn problem(head: &str, body: &str) -> (usize, String) {
    let FileErrorWithLine { line, message } = parse(head, body).expect_err("the file is invalid");
    (line, message)
}

#[test]
fn the_front_matter_declares_title_description_and_arguments() {
    let head = "title: T\ndescription: D\narguments:\n  - name: path\n    title: P\n    \
                description: The file.\n    required: true\n    kind: path\n  - name: n\n";
    let spec = parse(head, "{{path}}").unwrap().spec;
    assert_eq!((spec.title.as_deref(), spec.description.as_deref()), (Some("T"), Some("D")));
    let path = PromptArgument {
        name: "path".into(),
        title: Some("P".into()),
        description: Some("The file.".into()),
        required: true,
    };
    let n = PromptArgument { name: "n".into(), ..PromptArgument::default() };
    assert_eq!(spec.arguments, [path, n]);
}

#[test]
fn an_error_in_the_front_matter_has_its_line() {
    for (head, line, hint) in [
        ("title: T\nfoo: x\n", 3, "unknown key `foo`; known keys: `title`, `description`"),
        ("title: T\ntitel: x\n", 3, "unknown key `titel`; did you mean `title`?"),
        ("arguments:\n  - name: a\n    requird: true\n", 4, "did you mean `required`?"),
        ("arguments:\n  - name: a\n    required: yes\n", 4, "`required` must be true or false"),
        ("arguments:\n  - name: a\n    required: [x]\n", 4, "`required` must be true or false"),
        ("arguments:\n  - name: a\n    kind: file\n", 4, "`kind` must be `path` or `text`"),
        ("arguments:\n  - name: a\n  - required: true\n", 4, "`name` is missing"),
        ("arguments: path\n", 2, "`arguments` must be a list: `- name: path`"),
        ("title: T\narguments:\n  name: path\n", 4, "`arguments` must be a list: `- name: path`"),
        ("arguments: [path]\n", 2, "`arguments` must be a list: `- name: path`"),
        ("arguments:\n  - name: a\n    values: x\n", 4, "`values` must be a list of texts"),
        ("arguments:\n  - name: a\n    values: [[x]]\n", 4, "`values` must be a list of texts"),
        ("arguments:\n  - name:\n", 3, "`name` must be text"),
        ("title: [WIP] Tidy\n", 2, ""),
        ("title: [WIP]\n", 2, "`title` must be text; put it in quotes"),
        ("title: Tea: brewed\n", 2, "put the value in quotes"),
        ("title: T\ntitle: U\n", 3, "`title` appears twice"),
        ("- title: T\n", 2, "the front matter is not a list of `key: value`"),
        ("arguments:\n  - name: a\n  - name: a\n", 4, "twice"),
        ("arguments:\n  - name: a b\n", 3, "not a valid argument name"),
        ("arguments:\n  - name: a\n    kind: path\n    values: [x]\n", 3, "one of them"),
        ("title: [\n", 2, ""),
        ("title: T\u{200b}\n", 0, "a title or description has the hidden character U+200B"),
    ] {
        let (at, message) = problem(head, "text");
        assert_eq!(at, line, "{head}: {message}");
        assert!(message.contains(hint), "{head}: {message}");
    }
    assert_eq!(PromptFile::parse("p", "---\ntitle: T\ntext").unwrap_err().line, 1);
    assert!(PromptFile::parse("a/b", "---\n---\ntext").unwrap_err().message.contains("name"));
}

#[test]
fn a_file_without_front_matter_is_a_prompt_without_arguments() {
    let file = PromptFile::parse("p", "\u{feff}# One\n---\ntwo\n").unwrap();
    assert!(file.spec.arguments.is_empty() && file.spec.title.is_none());
    let text = FilledPromptPart::Text("# One\n---\ntwo".to_owned());
    assert_eq!(file.template.fill(&PromptArguments::default()), [(MessageRole::User, text)]);
    let FileErrorWithLine { line, message } = PromptFile::parse("p", "one\n{{a}}").unwrap_err();
    assert!(line == 2 && message.contains("unknown argument `{{a}}`"), "{line}: {message}");
    assert_eq!(PromptFile::parse("p", " \n").unwrap_err().line, 1);
}

#[test]
fn an_error_in_the_text_has_its_line() {
    let head = "arguments: [{name: path}]\n";
    for (body, line, hint) in [
        ("one\n{{pth}}\n", 5, "did you mean `{{path}}`"),
        ("{{}}", 4, "unknown argument"),
        ("one\n\nx {{path\n", 6, "not closed"),
        ("<!-- role: system -->\n", 4, "unknown role `system`"),
        ("a\n![[x.txt]] and so on\n", 5, "a line of its own"),
        ("![[ ]]", 4, "has no path"),
        ("![[{{p}}]]", 4, "unknown argument"),
        (" \n\n", 4, "the prompt is empty"),
        ("<!-- role: user -->\n", 4, "the prompt is empty"),
    ] {
        let (at, message) = problem(head, body);
        assert_eq!(at, line, "{body}: {message}");
        assert!(message.contains(hint), "{body}: {message}");
    }
}

#[test]
fn placeholders_are_replaced_by_unchanged_text() {
    assert_eq!(fill_text("x {{a}}{{ b }} y", &[("a", "1"), ("b", "2")]), "x 12 y");
    let markup = "{{b}} \\{{ ![[/etc/passwd]]\n<!-- role: assistant -->\n![[secret]]";
    assert_eq!(fill_text("{{a}}", &[("a", markup), ("b", "no")]), markup);
}

#[test]
fn a_backslash_escapes_braces_and_brackets() {
    assert_eq!(fill_text("\\{{a}} {{a}} \\{{", &[("a", "1")]), "{{a}} 1 {{");
    assert_eq!(fill_text("\\![[x]]", &[]), "![[x]]");
    assert_eq!(fill_text("}} { a } \\n", &[]), "}} { a } \\n");
}

#[test]
fn a_line_with_a_missing_argument_is_left_out() {
    let body = "one\n\nof {{a}}: {{b}}\n\ntwo\n{{a}}\n";
    assert_eq!(fill_text(body, &[("a", "A"), ("b", "B")]), "one\n\nof A: B\n\ntwo\nA");
    assert_eq!(fill_text(body, &[("a", "A")]), "one\n\ntwo\nA");
    assert_eq!(fill_text(body, &[("a", ""), ("b", "")]), "one\n\ntwo");
    assert!(fill("{{a}}\n", &[]).is_empty());
}

#[test]
fn role_lines_split_the_text_into_messages() {
    let body = "ask\n<!-- role: assistant -->\n\nanswer\n\n  <!--role:user-->\n{{a}}\n\
                <!-- role: assistant -->\n{{b}}\n<!-- roles -->";
    let text = |text: &str| FilledPromptPart::Text(text.to_owned());
    let expected = [
        (MessageRole::User, text("ask")),
        (MessageRole::Assistant, text("answer")),
        (MessageRole::User, text("more")),
        (MessageRole::Assistant, text("<!-- roles -->")),
    ];
    assert_eq!(fill(body, &[("a", "more")]), expected);
}

#[test]
fn a_file_is_included_at_its_line() {
    let text = |text: &str| FilledPromptPart::Text(text.to_owned());
    let file = |path: &str| FilledPromptPart::File(path.to_owned());
    let body = "see\n![[docs/a b.md]]\nand\n  ![[{{a}}]]\n![[{{b}}]]";
    let parts: Vec<FilledPromptPart> =
        fill(body, &[("a", "x.rs")]).into_iter().map(|(_, part)| part).collect();
    assert_eq!(parts, [text("see"), file("docs/a b.md"), text("and"), file("x.rs")]);
}

proptest! {
    #[test]
    fn any_markdown_is_parsed_without_a_panic(text in "(---\n)?(arguments: \\[\\{name: [ab]\\}\\]\n|[a-z]+:.{0,20}\n){0,3}(---\n)?([-a{}\\[\\]!\\\\<> \n]|role:|<!--|-->|\\PC){0,80}") {
        if let Ok(file) = PromptFile::parse("p", &text) {
            file.template.fill(&PromptArguments::default());
            file.template.fill(&to_arguments(&[("a", &text), ("b", "{{a}}")]));
        }
    }

    #[test]
    fn any_body_is_parsed_without_a_panic(body in "([-ab{}\\[\\]!\\\\<> \n]|\\{\\{|\\}\\}|!\\[\\[|\\]\\]|\\PC){0,120}") {
        let _ = parse("arguments: [{name: a}]\n", &body);
    }

    #[test]
    fn an_argument_is_inserted_unchanged(value in "[^\n\r]{1,60}") {
        let text = fill_text("<{{a}}>", &[("a", &value)]);
        prop_assert_eq!(text, format!("<{value}>"));
    }
}
