//! The skills of an upstream that were fetched one by one.

use std::collections::VecDeque;
use std::sync::Mutex;

use toolgate_contract::{Skill, lock_mutex};

use super::skill_index;

/// Maximum number of an upstream's fetched skills that are remembered.
const FETCHED_MAX: usize = 64;

/// The skills that were fetched last from an upstream. These include skills that are not listed,
/// and newer versions of listed skills.
#[derive(Default)]
pub(crate) struct FetchedSkills(Mutex<VecDeque<Skill>>);

impl FetchedSkills {
    pub(crate) fn remember(&self, skill: Skill) {
        let mut all = lock_mutex(&self.0);
        all.retain(|one| one.uri != skill.uri);
        all.push_back(skill);
        if all.len() > FETCHED_MAX {
            all.pop_front();
        }
    }

    /// Returns the fetched skill whose folder contains `uri`, if there is one.
    pub(crate) fn skill_of(&self, uri: &str) -> Option<Skill> {
        let all = lock_mutex(&self.0);
        let found = all.iter().filter(|skill| skill_index::is_in_folder(skill, uri));
        found.max_by_key(|skill| skill.uri.len()).cloned()
    }
}
