//! Derives the names of upstreams' tools and prompts: a prefix, and the upstream's own name for the
//! tool or prompt.

use std::collections::HashMap;

use toolgate_contract::{ToolId, fold_name};

/// Longest tool name that model APIs accept, in characters.
pub(crate) const NAME_MAX: usize = 64;
/// Length of the hash that makes shortened tool names unique, in characters.
const HASH_CHARS: usize = 8;

/// Returns the id under which toolgate offers the upstream tool `name`: with `prefix`, unless the
/// prefix is empty.
///
/// Invalid characters become `_`. A name that is too long or has characters outside ASCII is cut,
/// and ends with a hash of the whole name.
pub(crate) fn tool_id(prefix: &str, name: &str) -> ToolId {
    let replaced = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    let clean: String = name.chars().map(replaced).collect();
    // A part must not be empty, and there must be at least one.
    let parts: Vec<_> = clean.split('.').filter(|part| !part.is_empty()).collect();
    let clean = if parts.is_empty() { "_".to_owned() } else { parts.join(".") };
    let whole = if prefix.is_empty() { clean } else { format!("{prefix}.{clean}") };
    let id = match name.is_ascii() && whole.len() <= NAME_MAX {
        true => whole,
        false => {
            let hash = blake3::hash(format!("{prefix}\0{name}").as_bytes()).to_hex();
            let start = &whole[..whole.len().min(NAME_MAX - HASH_CHARS - 1)];
            format!("{}_{}", start.trim_end_matches('.'), &hash[..HASH_CHARS])
        }
    };
    ToolId::foreign(&id).expect("each part has a valid character")
}

/// For each of the tool `names`, returns true if the id of the tool differs from the ids of all
/// other tools in the spelling of every dialect.
pub(crate) fn are_unique(prefix: &str, names: &[&str]) -> Vec<bool> {
    let spelled = |name: &&str| fold_name(tool_id(prefix, name).as_str()).into_owned();
    let spelled: Vec<_> = names.iter().map(spelled).collect();
    let mut times = HashMap::<_, usize>::new();
    spelled.iter().for_each(|one| *times.entry(one).or_default() += 1);
    spelled.iter().map(|one| times[one] == 1).collect()
}

/// Returns the name under which toolgate offers the upstream prompt `name`.
pub(crate) fn prompt_name(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}_{name}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_names_are_kept() {
        let id = |prefix, name| tool_id(prefix, name).as_str().to_owned();
        assert_eq!(id("git", "git_log"), "git.git_log");
        assert_eq!(id("", "getTiny-Image"), "getTiny-Image");
        assert_eq!(id("a", "b c/d"), "a.b_c_d");
        assert_eq!(id("a", "b..c."), "a.b.c");
        assert_eq!(id("", ""), "_");
    }

    #[test]
    fn names_with_invalid_characters_get_distinct_ids() {
        let id = |name| tool_id("p", name).as_str().to_owned();
        assert!(id("天気").starts_with("p.___") && id("größe").starts_with("p.gr__e_"));
        assert_eq!(are_unique("p", &["天気", "地図", "größe", "grüße"]), [true; 4]);
    }

    #[test]
    fn names_that_are_spelled_alike_or_repeated_are_not_unique() {
        assert_eq!(
            are_unique("p", &["a-b", "c", "a_b", "d", "d"]),
            [false, true, false, false, false]
        );
    }

    proptest! {
        #[test]
        fn every_name_becomes_an_id_of_at_most_64_characters(
            prefix in "[a-z0-9_]{0,40}",
            name in any::<String>(),
        ) {
            let id = tool_id(&prefix, &name);
            prop_assert!(id.as_str().len() <= 64);
            prop_assert_eq!(id, tool_id(&prefix, &name));
        }

        #[test]
        fn long_names_with_the_same_start_get_distinct_ids(a in "[a-z]{1,20}", b in "[a-z]{1,20}") {
            prop_assume!(a != b);
            let long = "x".repeat(70);
            let id = |end: &str| tool_id("p", &format!("{long}{end}"));
            prop_assert_ne!(id(&a), id(&b));
        }
    }
}
