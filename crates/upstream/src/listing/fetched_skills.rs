//! The skills of an upstream that were fetched one by one.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use toolgate_contract::Skill;

use super::skill_index;

/// Maximum number of an upstream's fetched skills that are remembered.
const FETCHED_MAX: usize = 64;

/// The skills that were fetched last from an upstream. These include skills that are not listed,
/// and newer versions of listed skills.
#[derive(Default)]
pub(crate) struct FetchedSkills(Mutex<VecDeque<Skill>>);

impl FetchedSkills {
    pub(crate) fn remember(&self, skill: Skill) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.uri != skill.uri);
        all.push_back(skill);
        if all.len() > FETCHED_MAX {
            all.pop_front();
        }
    }

    /// Returns the fetched skill whose folder contains `uri`, if there is one.
    pub(crate) fn skill_of(&self, uri: &str) -> Option<Skill> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().filter(|skill| skill_index::is_in_folder(skill, uri));
        found.max_by_key(|skill| skill.uri.len()).cloned()
    }
}
