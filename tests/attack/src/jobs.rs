//! The cases, and each play of one: a form of it, by a dialect over a transport.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use serde_json::Value;

use super::case::{self, Case};
use super::names::{self, Form};
use super::offers::Offers;
use super::spoken::Way;
use super::{cases, more};

/// One play to be made.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) case: usize,
    pub(super) form: usize,
    pub(super) way: Way,
}

/// Returns the folder of the cases.
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Every case of both files.
pub(super) fn all_cases() -> anyhow::Result<Vec<Case>> {
    let mut cases = case::load(&folder().join("attacks.jsonl"), false)?;
    cases.extend(case::load(&folder().join("more.jsonl"), true)?);
    let mut ids = BTreeSet::new();
    for case in &cases {
        ensure!(ids.insert(&case.id), "there are two cases {}", case.id);
    }
    Ok(cases)
}

/// The forms of a case; for what is no call of a tool, one without a tool.
pub(super) fn forms(case: &Case) -> Vec<Form> {
    let forms = names::forms(case);
    if forms.is_empty() {
        return vec![Form { tool: String::new(), input: Value::Null, label: String::new() }];
    }
    forms
}

/// Returns every play of `cases` by `ways`, if each way offers the tools of `offers`.
pub(super) fn list(cases: &[Case], ways: &[Way], offers: &Offers) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        for (form, means) in forms(case).iter().enumerate() {
            for way in ways.iter().copied() {
                let able = if means.tool.is_empty() {
                    cases::is_for(case, way)
                } else {
                    (means.tool.starts_with("attack.") || offers.has(way, means))
                        && !cases::is_not_for(case, way)
                        && !more::is_enough_elsewhere(means, way)
                };
                if able {
                    jobs.push(Job { case: at, form, way });
                }
            }
        }
    }
    jobs
}
