//! Calls that have begun before a job was made of them, for the job to go on with.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolgate_contract::Caller;

use crate::carried::Driven;

/// How long one waits for its job.
const KEPT: Duration = Duration::from_secs(3600);
/// How many wait.
const MOST: usize = 1024;

/// Calls that have begun.
#[derive(Default)]
pub(crate) struct Ready(Mutex<HashMap<String, Vec<(Instant, Driven)>>>);

impl Ready {
    /// What a call of `tool` with `input` by `caller` is known by: of two that are alike,
    /// either may go on with what the other began.
    pub(crate) fn key(caller: &Caller, tool: &str, input: &Value) -> String {
        let said = json!([caller.kind.word(), &*caller.name, tool, input]).to_string();
        blake3::hash(said.as_bytes()).to_hex().to_string()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<(Instant, Driven)>>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, begun| {
            begun.retain(|(since, _)| since.elapsed() < KEPT);
            !begun.is_empty()
        });
        all
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.all().contains_key(key)
    }

    /// Whether it has its result already: no task has been made of it.
    pub(crate) fn is_done(&self, key: &str) -> bool {
        let is_task = |first: &Value| {
            first.pointer("/task/taskId").is_some() || first["resultType"] == "task"
        };
        let all = self.all();
        let last = all.get(key).and_then(|begun| begun.last());
        last.is_some_and(|(_, begun)| match begun {
            Driven::Done(begun) => !is_task(&begun.first),
            Driven::Going(_) => false,
        })
    }

    pub(crate) fn put(&self, key: String, begun: Driven) {
        let mut all = self.all();
        if all.values().map(Vec::len).sum::<usize>() < MOST {
            all.entry(key).or_default().push((Instant::now(), begun));
        }
    }

    pub(crate) fn take(&self, key: &str) -> Option<Driven> {
        Some(self.all().get_mut(key)?.pop()?.1)
    }
}
