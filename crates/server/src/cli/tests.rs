//! Checks that the guides use commands and options that exist.
#![allow(clippy::disallowed_methods, reason = "a test reads the guides")]

use std::fs;
use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;

use super::ToolgateCli;

/// Minimum number of command lines that the guides must contain.
const COMMANDS_MIN: usize = 200;

#[test]
fn the_command_lines_of_the_guides_have_known_commands_and_options() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let mut checked = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let page = entry.unwrap().path();
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for words in code_lines(&text).iter().flat_map(|line| toolgate_commands(line)) {
            checked += 1;
            let Err(err) = ToolgateCli::try_parse_from(&words) else { continue };
            // Prose shortens commands, so arguments may be missing.
            let is_unknown =
                matches!(err.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
            assert!(!is_unknown, "{}: {words:?}: {err}", page.display());
        }
    }
    assert!(checked >= COMMANDS_MIN, "{checked}");
}

/// Returns the lines of shell code on the guide page `text`, including code within sentences.
fn code_lines(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut lines = Vec::new();
    let mut language = None;
    for line in text.lines().map(str::trim) {
        if let Some(info) = line.strip_prefix("```") {
            language = match language {
                Some(_) => None,
                None => Some(info.split(' ').next().unwrap_or_default()),
            };
            continue;
        }
        match language {
            None => lines.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
            Some("sh") => lines.push(line.to_owned()),
            Some("console") => lines.extend(line.strip_prefix("$ ").map(str::to_owned)),
            Some(_) => {}
        }
    }
    lines
}

/// Returns the words of each command in `line` that runs toolgate.
fn toolgate_commands(line: &str) -> Vec<Vec<String>> {
    let is_variable = |word: &String| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'))
    };
    let commands = split_commands(line).into_iter().map(|words| {
        let words: Vec<_> = words.into_iter().skip_while(is_variable).collect();
        match words.strip_prefix(&["sudo", "-u", "toolgate", "-H"].map(str::to_owned)) {
            Some(rest) => rest.to_vec(),
            None => words,
        }
    });
    let runs_toolgate = |words: &Vec<String>| match &words[..] {
        // The contract's own form of `toolgate contract validate`.
        [_, first, ..] if first.starts_with("--validate") => false,
        [program, _, ..] => program == "toolgate" || program.ends_with("/toolgate"),
        [_] | [] => false,
    };
    commands.filter(runs_toolgate).collect()
}

/// Splits a line of shell code into commands, and each command into words. Ends at a comment or a
/// redirection.
fn split_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '<' | '>') => {
                // The number of a file descriptor is no argument.
                let is_number = |word: &mut String| word.bytes().all(|b| b.is_ascii_digit());
                word.take_if(is_number);
                break;
            }
            (None, '|' | ';' | '&') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    commands.push(words);
    commands
}
