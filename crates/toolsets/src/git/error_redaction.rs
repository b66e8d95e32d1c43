//! Removes file contents from git's error messages.
//!
//! A repository's configuration can name any file on the machine, and git quotes lines of such a
//! file if it cannot parse them.

/// The starts of git's messages that quote a file's content after a colon.
const QUOTING_PREFIXES: [&str; 8] = [
    "unexpected line in ",
    "unterminated line in ",
    "invalid line ",
    "invalid object name: ",
    "bad shallow line: ",
    "bad graft data: ",
    "unable to normalize alternate object path: ",
    "unrecognized pattern: ",
];
/// Fragments of git's messages that follow a quoted file content and precede its location.
const QUOTING_INFIXES: [&str; 2] = [" is not a valid attribute name: ", " not allowed: "];
/// The severities with which git's messages start.
const SEVERITIES: [&str; 3] = ["fatal: ", "error: ", "warning: "];

/// Returns git's `message` without the file contents that it quotes.
pub(super) fn redact_contents(message: &str) -> String {
    message.split_inclusive('\n').map(redact_content).collect()
}

fn redact_content(line: &str) -> String {
    let severity = SEVERITIES.into_iter().find(|severity| line.starts_with(severity));
    let severity = severity.unwrap_or_default();
    let rest = &line[severity.len()..];
    let end = if line.ends_with('\n') { "\n" } else { "" };
    if QUOTING_PREFIXES.iter().any(|begin| rest.starts_with(begin))
        && let Some((first, _)) = rest.split_once(": ")
    {
        return format!("{severity}{first}{end}");
    }
    for middle in QUOTING_INFIXES {
        // The quoted content may contain these words, but the location cannot.
        if let Some((_, place)) = rest.rsplit_once(middle) {
            return format!("{severity}a line{middle}{place}");
        }
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_file_contents_are_redacted_and_the_rest_of_the_message_is_kept() {
        for (message, expected) in [
            (
                "fatal: unexpected line in .git/packed-refs: root:x:0:0: root\n",
                "fatal: unexpected line in .git/packed-refs\n",
            ),
            ("error: invalid line 3: secret", "error: invalid line 3"),
            ("fatal: invalid object name: secret\n", "fatal: invalid object name\n"),
            (
                "secret is not a valid attribute name: /etc/passwd:1\nmore\n",
                "a line is not a valid attribute name: /etc/passwd:1\nmore\n",
            ),
            ("fatal: invalid object name 'mine'.\n", "fatal: invalid object name 'mine'.\n"),
            ("error: pathspec 'a: b' did not match", "error: pathspec 'a: b' did not match"),
            ("", ""),
        ] {
            assert_eq!(redact_contents(message), expected);
        }
    }
}
