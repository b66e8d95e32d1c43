//! Renders differences for people.

use std::fmt::Write as _;

use similar::{ChangeTag, TextDiff};

use super::differences::{Became, Change, Class};
use super::{Definition, pretty, unseen};

/// Lines of context around each changed line.
const AROUND: usize = 2;

/// Renders the changes of `upstream`: its instructions, then its tools, worst first.
///
/// Each tool has its differences and a line diff of the changed texts. Control characters are
/// escaped.
pub fn shown(upstream: &str, became: &Became) -> String {
    let mut all: Vec<_> = became.tools.iter().collect();
    all.sort_by_key(|(_, change)| std::cmp::Reverse(change.class()));
    let mut text = String::new();
    if let Some([was, is]) = &became.instructions {
        // Instructions always address the model.
        let class = if is.is_some() { Class::InstructionLike } else { Class::Cosmetic };
        _ = writeln!(text, "{upstream}: {}", class.word());
        let [was, is] = [was, is].map(|said| said.as_deref().unwrap_or_default());
        lines(&mut text, "instructions", was, is);
        text.push('\n');
    }
    for (name, change) in all {
        let name = unseen::line(name);
        let worst = change.class().word();
        _ = writeln!(text, "{upstream}.{name}: {worst}");
        for difference in change.differences() {
            let class = difference.class.word();
            _ = writeln!(text, "  {class:<16}  {}: {}", difference.at, difference.what);
        }
        match change {
            Change::Added(now) => parts(&mut text, None, now),
            Change::Removed => {}
            Change::Changed(both) => parts(&mut text, Some(&both[0]), &both[1]),
        }
        text.push('\n');
    }
    text
}

fn parts(text: &mut String, before: Option<&Definition>, now: &Definition) {
    type Part = fn(&Definition) -> Option<String>;
    let all: [(&str, Part); 6] = [
        ("title", |it| it.title.clone()),
        ("description", |it| it.description.clone()),
        ("annotations", |it| it.annotations.as_ref().map(pretty)),
        ("input_schema", |it| Some(pretty(&it.input_schema))),
        ("output_schema", |it| it.output_schema.as_ref().map(pretty)),
        ("meta", |it| it.meta.as_ref().map(pretty)),
    ];
    for (name, part) in all {
        let [was, is] = [before.and_then(part), part(now)].map(Option::unwrap_or_default);
        if was != is {
            lines(text, name, &was, &is);
        }
    }
}

/// Writes a line diff of the part `name`.
fn lines(text: &mut String, name: &str, was: &str, is: &str) {
    _ = writeln!(text, "  {name}");
    let diff = TextDiff::from_lines(was, is);
    for group in diff.grouped_ops(AROUND) {
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            let line = unseen::line(change.value().trim_end_matches(['\n', '\r']));
            _ = writeln!(text, "    {sign} {line}");
        }
    }
}
