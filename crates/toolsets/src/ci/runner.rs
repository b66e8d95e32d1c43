//! Recognizes the test runner in a script of a `package.json`, to select tests by name.

/// A JavaScript test runner that can select tests by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JavaScriptTestRunner {
    /// The test runner that is built into Node.
    Node,
    /// Jest, or Vitest, which has the same options to select tests.
    Jest,
    Mocha,
}

/// Options of `node` whose value is a separate command-line argument.
const VALUE_OPTIONS: [&str; 12] = [
    "--import",
    "--require",
    "-r",
    "--loader",
    "--experimental-loader",
    "--env-file",
    "--conditions",
    "-C",
    "--test-reporter",
    "--test-reporter-destination",
    "--test-concurrency",
    "--test-timeout",
];

/// The advice if a project's test script does not run a known test runner.
const ARGS_ADVICE: &str = "pass its own options in `args`";

impl JavaScriptTestRunner {
    /// Recognizes the test runner that receives arguments appended to `script`, a command line in
    /// `package.json`. If the runner cannot select tests by name, the error gives advice.
    pub(super) fn from_script(script: &str) -> Result<Self, String> {
        let last = script.rsplit(['&', ';', '|']).next().unwrap_or_default();
        let words: Vec<&str> = last.split_whitespace().collect();
        for (at, word) in words.iter().enumerate() {
            let program = word.rsplit('/').next().unwrap_or(word);
            match program.trim_end_matches(".js") {
                "jest" | "vitest" => return Ok(Self::Jest),
                "react-scripts" if words.get(at + 1) == Some(&"test") => return Ok(Self::Jest),
                "mocha" | "_mocha" => return Ok(Self::Mocha),
                "node" => return Self::from_node_args(script, &words[at + 1..]),
                _ => {}
            }
        }
        Err(unknown_runner(script, ARGS_ADVICE))
    }

    /// Recognizes the test runner in a `node` command with the arguments `words`. `script` is the
    /// complete command line, for the error.
    fn from_node_args(script: &str, words: &[&str]) -> Result<Self, String> {
        let mut last = "";
        for word in words {
            let word_before = std::mem::replace(&mut last, word);
            if word.starts_with('-') || VALUE_OPTIONS.contains(&word_before) {
                continue;
            }
            let program = word.rsplit('/').next().unwrap_or(word);
            match program.trim_end_matches(".js") {
                "jest" | "vitest" => return Ok(Self::Jest),
                "mocha" | "_mocha" => return Ok(Self::Mocha),
                // `node` treats arguments after a file as more files.
                _ => break,
            }
        }
        let is_all = words.iter().enumerate().all(|(at, word)| {
            word.starts_with('-') || at > 0 && VALUE_OPTIONS.contains(&words[at - 1])
        });
        if words.contains(&"--test") && is_all {
            return Ok(Self::Node);
        }
        let instead = if words.contains(&"--test") {
            "run `node --test --test-name-pattern=NAME FILES` with ci_run"
        } else {
            ARGS_ADVICE
        };
        Err(unknown_runner(script, instead))
    }

    /// Returns the arguments that make the test runner run only the tests that match `filter`.
    pub(super) fn filter_args(self, filter: String) -> Vec<String> {
        match self {
            Self::Node => vec![format!("--test-name-pattern={filter}")],
            Self::Jest => vec!["-t".to_owned(), filter],
            Self::Mocha => vec!["-g".to_owned(), filter],
        }
    }
}

fn unknown_runner(script: &str, instead: &str) -> String {
    format!(
        "the script `test` (`{}`) has no known way to select tests by name; leave `filter` out \
         and {instead}",
        script.escape_debug()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_program_of_a_script_gets_the_filter() {
        let check = |script, args: &[&str]| {
            let filter = JavaScriptTestRunner::from_script(script)
                .map(|runner| runner.filter_args("adds".to_owned()));
            assert_eq!(filter.unwrap(), args, "{script}");
        };
        check("node --test", &["--test-name-pattern=adds"]);
        check("tsc && node --import tsx --test", &["--test-name-pattern=adds"]);
        check("jest --ci", &["-t", "adds"]);
        check("NODE_ENV=test npx vitest run", &["-t", "adds"]);
        check("node --experimental-vm-modules node_modules/jest/bin/jest.js", &["-t", "adds"]);
        check("react-scripts test", &["-t", "adds"]);
        check("nyc ./node_modules/.bin/mocha test", &["-g", "adds"]);
    }

    #[test]
    fn a_filter_that_the_script_would_misread_is_refused() {
        let refused = ["", "jest && eslint .", "node test.js", "node --test test/a.js", "ava"];
        for script in refused {
            let refusal = JavaScriptTestRunner::from_script(script).unwrap_err();
            assert!(refusal.contains("leave `filter` out and"), "{script}: {refusal}");
        }
    }
}
