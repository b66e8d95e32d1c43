//! Reads the results of nextest's last run, and lists the tests of requirements.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::setup;
use crate::shell::{checkout, output};

/// Path of the results of nextest's last run in JUnit format, which `.config/nextest.toml` sets.
const JUNIT: &str = "target/nextest/default/junit.xml";

/// Ids of the contracts as test names spell them: `s0_23` means the requirement S0-23.
const SEEDS: [&str; 6] = ["s0", "s1", "s2", "s3", "s4", "x"];

/// Path of a test function, e.g. `contracts::s0::s0_23_a_line_is_bounded`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestFunctionPath(String);

impl TestFunctionPath {
    /// Returns the ids of the requirements with which the test name starts. There are three in
    /// `s0_23_67_x_04_…`.
    pub(crate) fn rows(&self) -> Vec<String> {
        self.parts().0
    }

    /// Returns the words of the test name after the requirement ids.
    pub(crate) fn sentence(&self) -> String {
        self.parts().1
    }

    fn parts(&self) -> (Vec<String>, String) {
        let name = self.0.rsplit("::").next().unwrap_or_default();
        let words: Vec<&str> = name.split('_').collect();
        let is_number = |at: usize| {
            words.get(at).is_some_and(|w| w.len() == 2 && w.bytes().all(|b| b.is_ascii_digit()))
        };
        let mut rows = Vec::new();
        let mut seed = "";
        let mut at = 0;
        loop {
            let is_seed = words.get(at).is_some_and(|word| SEEDS.contains(word));
            if is_seed && is_number(at + 1) {
                seed = words[at];
            } else if !seed.is_empty() && is_number(at) {
                rows.push(format!("{}-{}", seed.to_ascii_uppercase(), words[at]));
            } else {
                return (rows, words[at.min(words.len())..].join(" "));
            }
            at += 1;
        }
    }
}

impl fmt::Display for TestFunctionPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Results of a test run: true for each test that passed.
pub(crate) struct TestReport(BTreeMap<TestFunctionPath, bool>);

impl TestReport {
    /// Reads the results of the last test run. Fails if there are none.
    pub(crate) fn newest() -> anyhow::Result<Self> {
        let path = checkout().join(JUNIT);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{} is missing; run the tests first", path.display()))?;
        let report = Self::parse(&text);
        ensure!(!report.0.is_empty(), "{} contains no tests", path.display());
        Ok(report)
    }

    /// Parses the results of a test run in JUnit's format.
    fn parse(junit: &str) -> Self {
        let mut outcomes = BTreeMap::new();
        for case in junit.split("<testcase ").skip(1) {
            let name = case.split("name=\"").nth(1).and_then(|rest| rest.split('"').next());
            let body = case.split("</testcase>").next().unwrap_or(case);
            let failed = ["<failure", "<error"].iter().any(|mark| body.contains(mark));
            if let Some(name) = name {
                outcomes.insert(TestFunctionPath(name.to_owned()), !failed);
            }
        }
        Self(outcomes)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = TestFunctionPath> {
        self.0.keys().cloned()
    }

    pub(crate) fn passed(&self, test: &TestFunctionPath) -> bool {
        self.0.get(test).copied().unwrap_or(false)
    }
}

/// Lists the tests that the nextest filter `filter` selects.
pub(crate) fn list_tests(filter: &str) -> anyhow::Result<Vec<TestFunctionPath>> {
    let args =
        ["nextest", "list", "--workspace", "--locked", "--message-format", "json", "-E", filter];
    let list: Value = serde_json::from_str(&output(&setup::nextest()?, &args)?)?;
    let suites = list["rust-suites"].as_object().context("nextest lists no suites")?;
    let mut names = Vec::new();
    for suite in suites.values() {
        for (name, case) in suite["testcases"].as_object().into_iter().flatten() {
            if case["filter-match"]["status"] == "matches" {
                names.push(TestFunctionPath(name.clone()));
            }
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_test_starts_with_its_rows() {
        let name = |name: &str| TestFunctionPath(name.to_owned());
        let two = name("contracts::s0::s0_23_67_a_line_of_5_bytes");
        assert_eq!(two.rows(), ["S0-23", "S0-67"]);
        assert_eq!(two.sentence(), "a line of 5 bytes");
        assert_eq!(name("x::x_01_all_at_once").rows(), ["X-01"]);
        let both = name("x::s3_78_x_04_an_x_is_not_sent");
        assert_eq!(both.rows(), ["S3-78", "X-04"]);
        assert_eq!(both.sentence(), "an x is not sent");
        assert!(name("zyra::s0me_other_test").rows().is_empty());
    }

    #[test]
    fn the_outcome_of_a_test_is_read_from_the_report() {
        let junit = concat!(
            "<testsuite><testcase name=\"a::s0_01_x\" classname=\"it\" time=\"1\">\n</testcase>",
            "<testcase name=\"a::s0_02_y\"><failure message=\"no\"></failure></testcase>",
        );
        let report = TestReport::parse(junit);
        assert!(report.passed(&TestFunctionPath("a::s0_01_x".to_owned())));
        assert!(!report.passed(&TestFunctionPath("a::s0_02_y".to_owned())));
        assert!(!report.passed(&TestFunctionPath("a::s0_03_z".to_owned())));
    }
}
