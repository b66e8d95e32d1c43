//! Splits a command line into words, unless it needs a shell.

/// The command line of a `ci.run` call: words, or a script for a shell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CiCommandLine {
    /// The program and its arguments, which need no shell.
    Words(Vec<String>),
    /// A command line that only a shell can interpret.
    Script,
}

/// Splits `line` at spaces and tabs. Quotes and backslashes protect them as in a shell. Returns
/// [`CiCommandLine::Script`] if `line` uses other shell syntax.
pub(super) fn split_words(line: &str) -> CiCommandLine {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.trim().chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return CiCommandLine::Script,
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some(c) => word.extend(['\\', c]),
                            None => return CiCommandLine::Script,
                        },
                        Some('$' | '`') | None => return CiCommandLine::Script,
                        Some(c) => word.push(c),
                    }
                }
            }
            '\\' => match chars.next() {
                Some(c) if c != '\n' => word.get_or_insert_default().push(c),
                Some(_) | None => return CiCommandLine::Script,
            },
            '|' | '&' | ';' | '<' | '>' | '(' | ')' | '$' | '`' | '*' | '?' | '[' | '#' | '~'
            | '{' | '}' | '!' | '\n' => return CiCommandLine::Script,
            // A variable assignment before the program.
            '=' if words.is_empty() => return CiCommandLine::Script,
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    CiCommandLine::Words(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_backslashes_protect_blanks() {
        let check = |line: &str, words: &[&str]| {
            let words = words.iter().map(|&word| word.to_owned()).collect();
            assert_eq!(split_words(line), CiCommandLine::Words(words), "{line}");
        };
        check("  cargo  test --lib ", &["cargo", "test", "--lib"]);
        check(r#"echo 'a  b' "c \"d\"" e\ f ''"#, &["echo", "a  b", "c \"d\"", "e f", ""]);
        check("make CC=gcc", &["make", "CC=gcc"]);
        check("", &[]);
    }

    #[test]
    fn a_line_with_shell_syntax_is_a_script() {
        for line in ["a | b", "a && b", "a > b", "ls *.rs", "echo $HOME", "A=1 b", "a 'b", "a;b"] {
            assert_eq!(split_words(line), CiCommandLine::Script, "{line}");
        }
    }
}
