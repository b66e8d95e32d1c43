//! The reasons why node:test could not load test files. Node prints such a reason before the
//! failure.

use super::super::report::CiFailure;

/// The maximum number of test files whose load errors are kept.
const FILES_MAX: usize = 100;

/// The errors of JavaScript test files that node:test could not load.
#[derive(Default)]
pub(super) struct TestFileLoadErrors {
    /// The last output line that names an error and is not assigned to a test file yet.
    last: Option<String>,
    /// The printed name of each test file that could not be loaded, with its error.
    files: Vec<(String, String)>,
}

impl TestFileLoadErrors {
    /// Reads one line of a test runner's output, and remembers load errors and the test files they
    /// concern.
    pub(super) fn read_line(&mut self, line: &str) {
        let in_tap = line.strip_prefix("not ok ").and_then(|rest| rest.split_once(" - "));
        let in_spec = line.strip_prefix("\u{2716} ").and_then(|rest| rest.rsplit_once(" ("));
        let failed = in_tap.map(|(_, name)| name).or(in_spec.map(|(name, _)| name));
        if let Some(file) = failed {
            let error = self.last.take().filter(|_| file.contains('/'));
            let error = error.filter(|_| self.files.len() < FILES_MAX);
            self.files.extend(error.map(|error| (file.to_owned(), error)));
            return;
        }
        let text = line.strip_prefix("# ").unwrap_or(line);
        if names_error(text) {
            self.last = Some(text.to_owned());
        }
    }

    /// Replaces the message of each failure that concerns a complete test file with the load error
    /// of that file.
    pub(super) fn add_to(&self, failures: &mut [CiFailure]) {
        for failure in failures {
            let test = failure.test.as_deref();
            let error = self.files.iter().find(|(file, _)| test == Some(file.as_str()));
            if let Some((_, error)) = error
                && failure.message.trim_matches('\'') == "test failed"
            {
                failure.message.clone_from(error);
            }
        }
    }
}

/// Returns true if `line` starts with the name of an error, as in
/// `SyntaxError: missing ) after argument list`.
fn names_error(line: &str) -> bool {
    let (name, _) = line.split_once(": ").unwrap_or_default();
    let name = name.split(' ').next().unwrap_or_default();
    name.ends_with("Error") && name.starts_with(|c: char| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::super::super::build_tool::{BuildTool, ProjectAction};
    use super::super::tests::read;

    #[test]
    fn a_test_file_that_cannot_be_loaded_has_its_error_in_tap_and_spec() {
        let tap = "TAP version 13
# /w/p/b/broken.test.js:1
# SyntaxError: Unexpected token '}'
#     at wrapSafe (node:internal/modules/cjs/loader:1464:18)
# Node.js v20.20.2
# Subtest: /w/p/b/broken.test.js
not ok 1 - /w/p/b/broken.test.js
  ---
  location: '/w/p/b/broken.test.js:1:1'
  failureType: 'testCodeFailure'
  error: 'test failed'
  ...
# fail 1
";
        let spec = "SyntaxError: Unexpected token '}'
    at wrapSafe (node:internal/modules/cjs/loader:1464:18)
\u{2716} /w/p/b/broken.test.js (99.2ms)
  'test failed'

\u{2139} fail 1

\u{2716} failing tests:

test at b/broken.test.js:1:1
\u{2716} /w/p/b/broken.test.js (99.2ms)
  'test failed'
";
        for printed in [tap, spec] {
            let (summary, failures, _) = read(BuildTool::Npm, ProjectAction::Test, printed);
            let [failure] = &failures[..] else { panic!("{failures:#?}") };
            assert_eq!(failure.message, "SyntaxError: Unexpected token '}'");
            assert_eq!((summary.failed, failure.line), (Some(1), Some(1)));
        }
    }
}
