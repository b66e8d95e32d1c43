//! Renders differences between tools and their pins for people.

use std::fmt::Write as _;

use similar::{ChangeTag, DiffableStr, group_diff_ops};
use toolgate_contract::{diff_lines, printable};

use super::differences::{
    PinDifference, PinDifferenceSeverity, ToolDefinitionChange, UpstreamChanges,
};
use super::{ToolDefinition, pretty_json};

/// Number of lines of context around each changed line of a diff.
const CONTEXT_LINES: usize = 2;

/// Renders the changes of `upstream` since its approval as text: its instructions, then its tools,
/// worst first.
///
/// Each tool has its differences and a line diff of the changed texts. Control characters are
/// escaped.
pub fn render_changes(upstream: &str, changes: &UpstreamChanges) -> String {
    let mut all: Vec<_> = changes.tools.iter().collect();
    all.sort_by_key(|(_, change)| std::cmp::Reverse(change.class()));
    let mut text = String::new();
    if let Some([was, is]) = &changes.instructions {
        // Instructions always address the model.
        let class = if is.is_some() {
            PinDifferenceSeverity::InstructionLike
        } else {
            PinDifferenceSeverity::Cosmetic
        };
        _ = writeln!(text, "{upstream}: {}", class.as_str());
        let [was, is] = [was, is].map(|text| text.as_deref().unwrap_or_default());
        write_line_diff(&mut text, "instructions", was, is);
        text.push('\n');
    }
    for (name, change) in all {
        let name = printable::escape_hidden(name);
        let worst = change.class().as_str();
        _ = writeln!(text, "{upstream}.{name}: {worst}");
        for difference in change.differences() {
            let class = difference.class.as_str();
            _ = writeln!(
                text,
                "  {class:<16}  {}: {}",
                difference.location, difference.description
            );
        }
        match change {
            ToolDefinitionChange::Added(now) => write_parts(&mut text, None, now),
            ToolDefinitionChange::Removed => {}
            ToolDefinitionChange::Changed(both) => write_parts(&mut text, Some(&both[0]), &both[1]),
        }
        text.push('\n');
    }
    text
}

/// Summarizes the changes of `upstream` since its approval, which now offers `tool_count` tools.
///
/// The first line has numbers. Each changed tool follows with its worst difference, worst first.
pub fn summarize_changes(upstream: &str, tool_count: usize, changes: &UpstreamChanges) -> String {
    let UpstreamChanges { instructions, tools } = changes;
    let count = |is_counted: fn(&ToolDefinitionChange) -> bool| {
        tools.values().filter(|change| is_counted(change)).count()
    };
    let mut text = format!(
        "{upstream}: {tool_count} {}, {} new, {} changed, {} removed, {} with signs of prompt \
         injection\n",
        if tool_count == 1 { "tool" } else { "tools" },
        count(|change| matches!(change, ToolDefinitionChange::Added(_))),
        count(|change| matches!(change, ToolDefinitionChange::Changed(_))),
        count(|change| matches!(change, ToolDefinitionChange::Removed)),
        count(|change| change.class() == PinDifferenceSeverity::InstructionLike),
    );
    if let Some([was, is]) = instructions {
        let what = match (was, is) {
            (None, _) => "are new",
            (Some(_), None) => "were removed",
            (Some(_), Some(_)) => "changed",
        };
        _ = writeln!(text, "  the instructions {what}");
    }
    let mut all: Vec<_> = tools.iter().collect();
    all.sort_by_key(|(_, change)| std::cmp::Reverse(change.class()));
    for (name, change) in all {
        let name = printable::escape_hidden(name);
        _ = writeln!(text, "  {upstream}.{name}: {}", summarize_change(change));
    }
    text
}

/// Describes the change of a tool in a few words, by its worst difference.
fn summarize_change(change: &ToolDefinitionChange) -> String {
    let worst = change.differences().into_iter().max_by_key(|difference| difference.class);
    let describe = |PinDifference { class, location, description }: PinDifference| {
        format!("{}, {location}: {description}", class.as_str())
    };
    match change {
        ToolDefinitionChange::Removed => "removed".to_owned(),
        ToolDefinitionChange::Added(_) => {
            let sign = worst.filter(|worst| worst.class == PinDifferenceSeverity::InstructionLike);
            sign.map_or_else(|| "new".to_owned(), |sign| format!("new, {}", describe(sign)))
        }
        ToolDefinitionChange::Changed(_) => worst.map(describe).unwrap_or_default(),
    }
}

fn write_parts(text: &mut String, before: Option<&ToolDefinition>, now: &ToolDefinition) {
    type DefinitionPartRenderer = fn(&ToolDefinition) -> Option<String>;
    let all: [(&str, DefinitionPartRenderer); 6] = [
        ("title", |it| it.title.clone()),
        ("description", |it| it.description.clone()),
        ("annotations", |it| it.annotations.as_ref().map(pretty_json)),
        ("input_schema", |it| Some(pretty_json(&it.input_schema))),
        ("output_schema", |it| it.output_schema.as_ref().map(pretty_json)),
        ("meta", |it| it.meta.as_ref().map(pretty_json)),
    ];
    for (name, part) in all {
        let [was, is] = [before.and_then(part), part(now)].map(Option::unwrap_or_default);
        if was != is {
            write_line_diff(text, name, &was, &is);
        }
    }
}

/// Appends to `text` a line diff of the part `name` of a tool's definition, from the text `was` to
/// the text `is`.
fn write_line_diff(text: &mut String, name: &str, was: &str, is: &str) {
    _ = writeln!(text, "  {name}");
    let [was, is] = [was, is].map(DiffableStr::tokenize_lines);
    for group in group_diff_ops(diff_lines(&was, &is, None), CONTEXT_LINES) {
        for change in group.iter().flat_map(|op| op.iter_changes(&was[..], &is[..])) {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            let line = printable::escape_hidden(change.value().trim_end_matches(['\n', '\r']));
            _ = writeln!(text, "    {sign} {line}");
        }
    }
}
