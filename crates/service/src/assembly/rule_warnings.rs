//! Warnings about policy rules that match no tool, or whose condition fails for most tools.

use anyhow::anyhow;
use toolgate_host::ToolRuleError;

use crate::config::{Config, PolicyRule};

/// Returns a warning for each rule whose condition `when` uses an argument of some tools, although
/// the rule does not name these tools. For all other tools, the condition cannot be evaluated. A
/// deny or confirm rule then denies the call, and an allow rule does not apply.
pub(crate) fn warnings(rules: &[PolicyRule]) -> impl Iterator<Item = String> {
    let unlimited = rules.iter().filter(|rule| rule.tools.is_empty());
    unlimited.filter_map(|rule| {
        let argument = unguarded_argument(rule.when.as_deref()?)?;
        Some(format!(
            "policy.rules, `{}`: `when` fails for every tool without the argument `{argument}`; name \
             the tools of the rule in `tools`",
            rule.name
        ))
    })
}

/// Converts `err` to an error that also names the line of the settings file with the pattern that
/// matches no tool. Names no line if several lines contain the pattern.
pub(crate) fn add_line(err: &ToolRuleError, config: &Config) -> anyhow::Error {
    let (ToolRuleError::NoMatch { pattern, .. }, Some(source)) = (err, &config.source) else {
        return anyhow!("{err}");
    };
    let quoted = [format!("\"{pattern}\""), format!("'{pattern}'")];
    let lines = source.text.lines().enumerate();
    let mut with_pattern =
        lines.filter(|(_, line)| quoted.iter().any(|quoted| line.contains(quoted.as_str())));
    match (with_pattern.next(), with_pattern.next()) {
        (Some((at, _)), None) => {
            anyhow!("{err} (line {} of {})", at + 1, source.file.display())
        }
        (_, _) => anyhow!("{err}"),
    }
}

/// Returns the first argument in the CEL condition `when` that some tools may lack, because the
/// condition does not test it with `has(input.NAME)`. Returns `None` if the condition uses `tool`.
fn unguarded_argument(when: &str) -> Option<String> {
    let code = without_strings(when);
    let words = words(&code);
    if words.contains(&"tool") {
        return None;
    }
    let mut used = Vec::new();
    let mut tested = Vec::new();
    for at in 0..words.len() {
        match words[at..] {
            ["has", "(", "input", ".", name, ..] => tested.push(name),
            ["input", ".", name, ..] => used.push(name),
            _ => {}
        }
    }
    used.into_iter().find(|name| !tested.contains(name)).map(str::to_owned)
}

/// Replaces each string literal in the CEL `expression` by `""`.
fn without_strings(expression: &str) -> String {
    let mut code = String::new();
    let mut quote = None;
    let mut chars = expression.chars();
    while let Some(c) = chars.next() {
        match quote {
            None => {
                code.push(c);
                quote = Some(c).filter(|c| matches!(c, '"' | '\''));
            }
            Some(_) if c == '\\' => drop(chars.next()),
            Some(end) if c == end => {
                code.push(c);
                quote = None;
            }
            Some(_) => {}
        }
    }
    code
}

/// Splits CEL `code` into tokens: names and single characters, without spaces.
fn words(code: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut words = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = match is_name(first) {
            true => rest.find(|c: char| !is_name(c)).unwrap_or(rest.len()),
            false => first.len_utf8(),
        };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_counts_unless_it_is_tested_or_the_rule_depends_on_the_tool() {
        for (when, argument) in [
            ("under(input.path, 'infra')", Some("path")),
            ("input . path == 'a' && input.text == 'b'", Some("path")),
            ("has(input.path) && under(input.path, 'infra')", None),
            ("has(input.path) && input.path == input.text", Some("text")),
            ("tool.id == 'files.read' && input.path == 'a'", None),
            ("caller.name == 'input.path'", None),
            ("caller.name == \"it\\\"s input.path\"", None),
            ("'admin' in caller.roles", None),
            ("size(input) > 3", None),
        ] {
            assert_eq!(unguarded_argument(when).as_deref(), argument, "{when}");
        }
    }
}
