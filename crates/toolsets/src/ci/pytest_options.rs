//! Reads and changes the options of pytest that a project's settings or a call contain.

/// The maximum number of lines that are read for pytest's setting `addopts`.
const SETTING_LINES_MAX: usize = 200;

/// Returns the words of the first setting `addopts` in `settings`, the text of files such as
/// `pytest.ini` and `pyproject.toml`. Returns `None` if `addopts` is not set.
fn parse_addopts(settings: &str) -> Option<Vec<String>> {
    let mut lines = settings.lines();
    let first = lines.find_map(|line| {
        let rest = line.trim_start().strip_prefix("addopts")?.trim_start();
        rest.strip_prefix(['=', ':'])
    })?;
    let more: Vec<&str> = lines.take(SETTING_LINES_MAX).collect();
    let in_toml = first.trim_start().starts_with(['[', '"', '\'']);
    let from_toml = in_toml.then(|| parse_toml_value(first, &more)).flatten();
    Some(from_toml.unwrap_or_else(|| {
        // In an ini file, the value continues in lines that are indented.
        let is_comment = |line: &&&str| line.trim_start().starts_with(['#', ';']);
        let is_value = |line: &&&str| line.starts_with([' ', '\t']) || line.trim().is_empty();
        let rest = more.iter().take_while(is_value).filter(|line| !is_comment(line)).copied();
        split_options(&[first].into_iter().chain(rest).collect::<Vec<_>>().join(" "))
    }))
}

/// Returns the words of a TOML string or list of strings that begins on the line `first` and may
/// continue on the lines `more`.
fn parse_toml_value(first: &str, more: &[&str]) -> Option<Vec<String>> {
    let mut document = format!("value = {first}");
    let mut more = more.iter();
    loop {
        if let Ok(mut table) = toml::from_str::<toml::Table>(&document) {
            return match table.remove("value")? {
                toml::Value::String(text) => Some(split_options(&text)),
                toml::Value::Array(words) => {
                    let words = words.into_iter().map(|word| word.as_str().map(str::to_owned));
                    words.collect()
                }
                _ => None,
            };
        }
        document.push('\n');
        document.push_str(more.next()?);
    }
}

/// Splits `text` into options at blanks, as pytest does. Quotes and backslashes protect blanks.
fn split_options(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(chars.next()),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Returns the project's pytest options as a value of `addopts`, without options that turn off
/// pytest's output or its list of failed tests. Returns `None` if the project sets no such option.
pub(super) fn options_with_output(settings: &str) -> Option<String> {
    let words = parse_addopts(settings)?;
    let is_hiding = |(at, word): (usize, &String)| match word.as_str() {
        "--no-summary" | "-pno:terminal" => true,
        "no:terminal" => at > 0 && words[at - 1] == "-p",
        _ => false,
    };
    if !words.iter().enumerate().any(is_hiding) {
        return None;
    }
    let kept = without_quiet_options(words);
    Some(kept.iter().map(|word| quote_option(word)).collect::<Vec<_>>().join(" "))
}

/// Quotes `word` so that pytest reads it as a single option in `addopts`.
fn quote_option(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=:,./+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r#"'"'"'"#)),
    }
}

/// Returns the pytest options `args` without those that suppress the counts or the ids of failed
/// tests.
pub(super) fn without_quiet_options(args: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for arg in args {
        let letters = arg.strip_prefix('-').unwrap_or_default();
        let is_quiet = !letters.is_empty() && letters.bytes().all(|letter| letter == b'q');
        if arg == "no:terminal" && kept.last().is_some_and(|last| last == "-p") {
            kept.pop();
        } else if !is_quiet && !["--quiet", "--no-summary", "-pno:terminal"].contains(&&*arg) {
            kept.push(arg);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_hide_output_are_left_out_and_the_others_keep_their_words() {
        let ini = "[pytest]\naddopts =\n    --cov=src\n    # -p no:cov\n\n    -p no:terminal\n    \
                   -m \"not slow\"\nmarkers =\n    slow: x\n";
        let list = "[tool.pytest.ini_options]\naddopts = [\n  \"--no-summary\", # quiet\n  \
                    '-k', \"a or b\",\n]\nminversion = \"8\"\n";
        let text = "[tool.pytest.ini_options]\naddopts = \"-x -p no:terminal -m 'not slow'\"\n";
        let long = "[tool.pytest.ini_options]\naddopts = \"\"\"\n  -pno:terminal\n  -k \\\"it\\\"\n\"\"\"\n";
        for (settings, expected) in [
            (ini, Some("--cov=src -m 'not slow'")),
            (list, Some("-k 'a or b'")),
            (text, Some("-x -m 'not slow'")),
            (long, Some("-k it")),
            ("[pytest]\naddopts: -q --no-summary -k it\\'s\n", Some("-k 'it'\"'\"'s'")),
            ("[pytest]\naddopts = --no-summary\n", Some("")),
            ("[pytest]\naddopts = \"-x\" -p no:terminal\n", Some("-x")),
            ("[pytest]\naddopts = -qq --tb=no -k no:terminal\n", None),
            ("[pytest]\n# addopts = --no-summary\n", None),
            ("[pytest]\naddopts_more = --no-summary\n", None),
        ] {
            assert_eq!(options_with_output(settings).as_deref(), expected, "{settings}");
        }
    }
}
