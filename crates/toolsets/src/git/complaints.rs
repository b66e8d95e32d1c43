//! What git complains of, without what stands in the files that it complains of.
//!
//! Some of those files are named by a repository's configuration and may be anywhere.

/// How complaints begin that, after a colon, go on with what a file says.
const QUOTING: [&str; 8] = [
    "unexpected line in ",
    "unterminated line in ",
    "invalid line ",
    "invalid object name: ",
    "bad shallow line: ",
    "bad graft data: ",
    "unable to normalize alternate object path: ",
    "unrecognized pattern: ",
];
/// What stands in complaints between what a file says and where it says so.
const QUOTED: [&str; 2] = [" is not a valid attribute name: ", " not allowed: "];
/// How bad it is.
const SEVERITIES: [&str; 3] = ["fatal: ", "error: ", "warning: "];

/// `said`, each line of it without what a file says.
pub(super) fn without_contents(said: &str) -> String {
    said.split_inclusive('\n').map(without_content).collect()
}

fn without_content(line: &str) -> String {
    let severity = SEVERITIES.into_iter().find(|severity| line.starts_with(severity));
    let severity = severity.unwrap_or_default();
    let rest = &line[severity.len()..];
    let end = if line.ends_with('\n') { "\n" } else { "" };
    if QUOTING.iter().any(|begin| rest.starts_with(begin))
        && let Some((first, _)) = rest.split_once(": ")
    {
        return format!("{severity}{first}{end}");
    }
    for middle in QUOTED {
        // What a file says may have the same words in it, where it is does not.
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
    fn what_a_file_says_is_left_out_and_what_git_says_is_kept() {
        for (said, kept) in [
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
            assert_eq!(without_contents(said), kept);
        }
    }
}
