//! Parses error lines with a location, in the formats of most programs.

use super::super::report::{CiFailure, FailureSeverity};

/// Parses an error line of a compiler: `a.c:3:5: error: …`, `a.cs(3,5): error CS1: …`,
/// `a.ts:3:5 - error TS1: …`, `[ERROR] /a.java:[3,5] …`, `a.java:3: error: …`.
pub(super) fn parse_located(line: &str) -> Option<CiFailure> {
    let line = line.trim_start();
    let maven = [("[ERROR] ", FailureSeverity::Error), ("[WARNING] ", FailureSeverity::Warning)];
    for (mark, severity) in maven {
        if let Some(rest) = line.strip_prefix(mark) {
            let (file, rest) = rest.split_once(":[")?;
            let (place, message) = rest.split_once(']')?;
            let (row, column) = parse_row_column(place)?;
            return Some(CiFailure::new(severity, message.trim()).with_place(
                file,
                Some(row),
                column,
            ));
        }
    }
    parse_parenthesized(line).or_else(|| parse_colons(line))
}

/// Parses `file(3,5): error CODE: message`.
fn parse_parenthesized(line: &str) -> Option<CiFailure> {
    let (place, rest) = line.split_once("): ")?;
    let (file, place) = place.rsplit_once('(')?;
    if file.is_empty() || file.contains(' ') && !file.contains(['/', '\\']) {
        return None;
    }
    let (row, column) = parse_row_column(place)?;
    let (severity, rest) = split_severity(rest)?;
    let (code, message) = split_code(rest);
    // The project file that the compiler was building.
    let message = match message.rsplit_once(" [") {
        Some((before, project)) if project.ends_with("proj]") => before,
        Some(_) | None => message,
    };
    let failure = CiFailure::new(severity, message).with_place(file, Some(row), column);
    Some(CiFailure { code: code.map(str::to_owned), ..failure })
}

/// Parses `file:3:5: error: message`, optionally with ` - ` before the severity.
fn parse_colons(line: &str) -> Option<CiFailure> {
    for (at, _) in line.match_indices(':') {
        let file = &line[..at];
        let rest = &line[at + 1..];
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let after = &rest[digits..];
        let is_number = file.bytes().all(|b| b.is_ascii_digit());
        if is_number || digits == 0 || !after.starts_with([':', ' ']) {
            continue;
        }
        let row = rest[..digits].parse().ok()?;
        let (column, after) =
            match after.strip_prefix(':').map(|after| (leading_number(after), after)) {
                Some((Some(column), after)) => {
                    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
                    (Some(column), &after[digits..])
                }
                Some((None, _)) | None => (None, after),
            };
        let after = after.trim_start_matches(':').trim_start();
        let after = after.strip_prefix("- ").unwrap_or(after);
        let (severity, rest) = split_severity(after)?;
        let (code, message) = split_code(rest);
        let failure = CiFailure::new(severity, message).with_place(file, Some(row), column);
        return Some(CiFailure { code: code.map(str::to_owned), ..failure });
    }
    None
}

/// Splits the severity, such as `error`, off the start of `text`.
fn split_severity(text: &str) -> Option<(FailureSeverity, &str)> {
    let words = [
        ("error", FailureSeverity::Error),
        ("fatal error", FailureSeverity::Error),
        ("Error", FailureSeverity::Error),
        ("warning", FailureSeverity::Warning),
        ("Warning", FailureSeverity::Warning),
    ];
    let (word, severity) = words.into_iter().find(|(word, _)| {
        text.strip_prefix(word).is_some_and(|rest| rest.starts_with([':', ' ', '[']))
    })?;
    Some((severity, &text[word.len()..]))
}

/// Splits the error code, such as `TS2304`, off the start of `text`. The code is `None` if `text`
/// has none.
fn split_code(text: &str) -> (Option<&str>, &str) {
    let text = text.trim_start();
    match text.split_once(':') {
        Some(("", message)) => (None, message.trim()),
        Some((code, message)) if is_code(code) => (Some(code), message.trim()),
        Some(_) | None => (None, text.trim()),
    }
}

fn is_code(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_alphanumeric()) && word.bytes().any(|b| b.is_ascii_digit())
}

/// Parses a line number and an optional column: `3` or `3,5`.
fn parse_row_column(place: &str) -> Option<(u32, Option<u32>)> {
    let mut numbers = place.split(',');
    let row = numbers.next()?.trim().parse().ok()?;
    Some((row, numbers.next().and_then(|column| column.trim().parse().ok())))
}

fn leading_number(text: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok()
}

/// Finds the last `file:line:column` in `line`, as in the stack trace line `at f (/a/b.js:3:5)`.
pub(super) fn find_place(line: &str) -> Option<(&str, u32, Option<u32>)> {
    let line = line.trim().trim_end_matches([')', ',', '\'', '"']);
    let (rest, last) = line.rsplit_once(':')?;
    let last: u32 = last.parse().ok()?;
    let (file, row, column) = match rest.rsplit_once(':') {
        Some((file, row)) if row.parse::<u32>().is_ok() => (file, row.parse().ok()?, Some(last)),
        Some(_) | None => (rest, last, None),
    };
    let file = file.rsplit(['(', '\'', '"']).next()?;
    let file = file.strip_prefix("at ").unwrap_or(file);
    let file = file.strip_prefix("file://").unwrap_or(file).trim();
    (!file.is_empty() && !file.contains(' ')).then_some((file, row, column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let parsed = parse_located(line).map(|failure| {
            let CiFailure { file, line, column, severity, code, message, .. } = failure;
            format!("{file:?} {line:?} {column:?} {severity:?} {code:?} {message}")
                .replace("Some(", "")
                .replace(')', "")
        });
        assert_eq!(parsed.as_deref().unwrap_or("nothing"), expected, "{line}");
    }

    #[test]
    fn error_lines_of_compilers_are_parsed() {
        check("main.c:3:5: error: expected ';'", r#""main.c" 3 5 Error None expected ';'"#);
        check(
            "main.c:1:10: fatal error: x.h: No such file",
            r#""main.c" 1 10 Error None x.h: No such file"#,
        );
        check("src/a.c:9: warning: unused", r#""src/a.c" 9 None Warning None unused"#);
        check(
            "src/a.ts(3,5): error TS2322: Type 'x'.",
            r#""src/a.ts" 3 5 Error "TS2322" Type 'x'."#,
        );
        check(
            "src/a.ts:3:5 - error TS2322: Type 'x'.",
            r#""src/a.ts" 3 5 Error "TS2322" Type 'x'."#,
        );
        check(
            "/w/P.cs(3,5): error CS1002: ; expected [/w/x.csproj]",
            r#""/w/P.cs" 3 5 Error "CS1002" ; expected"#,
        );
        check(
            "[ERROR] /w/A.java:[3,5] cannot find symbol",
            r#""/w/A.java" 3 5 Error None cannot find symbol"#,
        );
        check("A.java:7: error: not a statement", r#""A.java" 7 None Error None not a statement"#);
    }

    #[test]
    fn lines_without_a_location_are_ignored() {
        for line in [
            "error: could not compile",
            "10:30:05 INFO started",
            "http://x:80/a",
            "ok",
            ":3: error: x",
        ] {
            check(line, "nothing");
        }
    }

    #[test]
    fn a_location_is_found_in_a_stack_trace() {
        assert_eq!(find_place("    at f (/w/a.js:3:5)"), Some(("/w/a.js", 3, Some(5))));
        assert_eq!(find_place("at file:///w/a.mjs:3:5"), Some(("/w/a.mjs", 3, Some(5))));
        assert_eq!(find_place("  location: '/w/a.js:3:5'"), Some(("/w/a.js", 3, Some(5))));
        assert_eq!(find_place("x_test.go:12"), Some(("x_test.go", 12, None)));
        assert_eq!(find_place("at it said so"), None);
    }
}
