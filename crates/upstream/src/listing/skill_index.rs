//! Index of the skills that an upstream lists. Invalid entries are left out.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use toolgate_contract::{Skill, SkillFile, SkillFileList};
use toolgate_dialects::mcp::upstream::parse_skill;

use super::UpstreamListing;
use crate::definition_texts::check_skill_texts;

/// Name of a skill's main file.
const SKILL_FILE: &str = "SKILL.md";
/// Maximum number of invalid skills of one upstream that are logged.
const INVALID_LOGGED_MAX: usize = 3;

/// The skills of an upstream, sorted by URI, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct SkillIndex {
    pub(crate) all: Vec<Skill>,
    /// Index into `all` of the skill to which a file belongs, by the file's URI.
    files: HashMap<String, usize>,
}

impl SkillIndex {
    /// Creates an index of the skills in `listing` of the upstream `name`.
    pub(crate) fn from_listing(name: &str, listing: &UpstreamListing) -> Self {
        let mut all = Vec::new();
        let mut logged = 0;
        for entry in &listing.skills {
            match accept_skill(entry) {
                Ok(skill) => all.push(skill),
                Err(why) if logged < INVALID_LOGGED_MAX => {
                    logged += 1;
                    let uri = entry["uri"].as_str().unwrap_or_default();
                    tracing::warn!("the skill {uri:?} of the upstream `{name}` is left out: {why}");
                }
                Err(_) => {}
            }
        }
        all.sort_by(|a, b| a.uri.cmp(&b.uri));
        all.dedup_by(|a, b| a.uri == b.uri);
        let mut files = HashMap::new();
        for (at, skill) in all.iter().enumerate() {
            files.insert(skill.uri.clone(), at);
            if let SkillFileList::All(list) = &skill.files {
                files.extend(list.iter().map(|file| (file.uri.clone(), at)));
            }
        }
        Self { all, files }
    }

    /// Returns the listed skill whose `SKILL.md` has the URI `uri`, if there is one.
    pub(crate) fn skill(&self, uri: &str) -> Option<&Skill> {
        let at = self.all.binary_search_by(|skill| skill.uri.as_str().cmp(uri)).ok()?;
        Some(&self.all[at])
    }

    /// Returns true if one of the upstream's skills lists the file `uri`.
    pub(crate) fn has_file(&self, uri: &str) -> bool {
        self.files.contains_key(uri)
    }

    /// Returns the skill to which `uri` belongs: the URI of one of its files, a path inside its
    /// folder, or the folder itself.
    pub(crate) fn skill_of(&self, uri: &str) -> Option<&Skill> {
        let named = self.files.get(uri).map(|at| &self.all[*at]);
        named.or_else(|| {
            // Testing each parent folder would be slow, because a URI can have millions of them.
            let uri = uri.trim_end_matches('/');
            let around = self.all.iter().filter(|skill| is_folder_or_inside(skill, uri));
            around.max_by_key(|skill| skill.uri.len())
        })
    }

    /// Returns true if `uri` may belong to a skill that is not listed. If no skill is listed, only
    /// `skill://` URIs may.
    pub(crate) fn may_have(&self, uri: &str) -> bool {
        self.has_scheme(uri) || (self.all.is_empty() && uri.starts_with("skill://"))
    }

    /// Returns true if `uri` has a scheme that only the skills of this upstream use.
    pub(crate) fn has_own_scheme(&self, uri: &str) -> bool {
        own_scheme(uri).is_some() && self.has_scheme(uri)
    }

    /// Returns true if any listed skill has a URI with the scheme of `uri`.
    pub(crate) fn has_scheme(&self, uri: &str) -> bool {
        let Some((wanted, _)) = uri.split_once("://") else { return false };
        let is_same = |skill: &Skill| {
            skill.uri.split_once("://").is_some_and(|(own, _)| own.eq_ignore_ascii_case(wanted))
        };
        self.all.iter().any(is_same)
    }
}

/// Returns true if `uri` is the folder of `skill` or inside it.
fn is_folder_or_inside(skill: &Skill, uri: &str) -> bool {
    let folder = skill.uri.strip_suffix(SKILL_FILE).and_then(|it| it.strip_suffix('/'));
    let rest = folder.and_then(|folder| uri.strip_prefix(folder));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns true if `uri` is inside the folder of `skill`.
pub(crate) fn is_in_folder(skill: &Skill, uri: &str) -> bool {
    skill.uri.strip_suffix(SKILL_FILE).is_some_and(|folder| uri.starts_with(folder))
}

/// Parses an entry of `skills/list`.
///
/// # Errors
///
/// Returns the reason if a client would not accept the skill.
pub(crate) fn accept_skill(entry: &Value) -> Result<Skill, String> {
    let skill = parse_skill(entry).ok_or("a URI, a front matter or a list of files is missing")?;
    check_skill_texts(entry)?;
    let folder = skill.uri.strip_suffix(SKILL_FILE).and_then(|it| it.strip_suffix('/'));
    let folder = folder
        .filter(|_| is_normal_form(&skill.uri))
        .ok_or("its URI does not end with `/NAME/SKILL.md`")?;
    let (_, path) = folder.split_once("://").ok_or("its URI has no scheme")?;
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.is_empty() || skill.front_matter.get("name").and_then(Value::as_str) != Some(name) {
        return Err(format!("its name is not `{name}`, the name of its folder"));
    }
    if let SkillFileList::All(files) = &skill.files {
        let mut seen = HashSet::new();
        for SkillFile { uri, digest, .. } in files {
            if !is_in_folder(&skill, uri) || !is_normal_form(uri) || !seen.insert(uri) {
                return Err(format!("its file {uri:?} is outside its folder or listed twice"));
            }
            let hex = digest.strip_prefix("sha256:").unwrap_or_default();
            if hex.len() != 64 || !hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                return Err(format!("the digest of its file {uri:?} is invalid"));
            }
        }
        if !seen.contains(&skill.uri) {
            return Err(format!("its list of files lacks `{SKILL_FILE}`"));
        }
    }
    Ok(skill)
}

/// Returns true if `uri` is in normal form, so that no other spelling names the same file.
pub(crate) fn is_normal_form(uri: &str) -> bool {
    let Some((scheme, path)) = uri.split_once("://") else { return false };
    let is_of_scheme =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.');
    let unreserved =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'/');
    let escapes_well = path.split('%').skip(1).all(|rest| {
        let hex = rest.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        hex.is_some_and(|byte| !unreserved(byte))
    });
    scheme.bytes().all(is_of_scheme)
        && !path.contains(['?', '#', '\\'])
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && escapes_well
}

/// Returns the scheme of `uri` with `://`, or `None` if it is a general scheme such as `https://`.
pub(crate) fn own_scheme(uri: &str) -> Option<&str> {
    let end = uri.find("://")? + 3;
    let scheme = &uri[..end];
    (!matches!(scheme, "file://" | "http://" | "https://")).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(uri: &str, name: &str, files: &[&str]) -> Value {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let file = |uri: &&str| json!({ "uri": uri, "digest": digest, "size": 1 });
        let files: Vec<_> = files.iter().map(file).collect();
        json!({ "uri": uri, "frontmatter": { "name": name }, "resources": files })
    }

    #[test]
    fn a_file_belongs_to_the_innermost_skill_around_it() {
        let skills = vec![
            entry("skill://a/SKILL.md", "a", &["skill://a/SKILL.md", "skill://a/x.md"]),
            entry("skill://a/b/SKILL.md", "b", &["skill://a/b/SKILL.md"]),
        ];
        let index = SkillIndex::from_listing(
            "up",
            &UpstreamListing { skills, ..UpstreamListing::default() },
        );
        let skill_of = |uri| index.skill_of(uri).map(|skill| skill.uri.as_str());
        for (uri, expected) in [
            ("skill://a/x.md", Some("skill://a/SKILL.md")),
            ("skill://a/y/z.md", Some("skill://a/SKILL.md")),
            ("skill://a", Some("skill://a/SKILL.md")),
            ("skill://a/b/c", Some("skill://a/b/SKILL.md")),
            ("skill://ab/x.md", None),
            ("skill://", None),
            ("other://a/x.md", None),
        ] {
            assert_eq!(skill_of(uri), expected, "{uri}");
        }
        assert!(index.has_file("skill://a/x.md") && !index.has_file("skill://a/y.md"));
        assert!(index.has_scheme("SKILL://x") && !index.has_scheme("other://x"));
    }

    #[test]
    fn a_skill_that_a_client_would_refuse_is_invalid() {
        let good = "skill://a/SKILL.md";
        assert!(accept_skill(&entry(good, "a", &[good])).is_ok());
        for (uri, name, files) in [
            ("skill://SKILL.md", "skill:", vec!["skill://SKILL.md"]),
            ("https://x", "x", vec![]),
            ("skill://a/SKILL.md", "b", vec![good]),
            ("skill://a/SKILL.md", "a", vec!["skill://a/x.md"]),
            ("skill://a/SKILL.md", "a", vec![good, good]),
            ("skill://a/SKILL.md", "a", vec![good, "skill://b/x.md"]),
            ("skill://a/SKILL.md", "a", vec![good, "skill://a/../b/x.md"]),
            ("skill://a/SKILL.md", "a", vec![good, "skill://a/%78.md"]),
            ("SKILL://a/SKILL.md", "a", vec!["SKILL://a/SKILL.md"]),
        ] {
            assert!(accept_skill(&entry(uri, name, &files)).is_err(), "{uri} {files:?}");
        }
        let mut invalid = entry(good, "a", &[good]);
        invalid["frontmatter"]["description"] = json!("Reads.\u{e0041}");
        assert_eq!(
            accept_skill(&invalid).err().as_deref(),
            Some("a text of its `frontmatter` has the hidden character U+E0041 at byte 6")
        );
        let mut invalid = entry(good, "a", &[good]);
        invalid["resources"][0]["digest"] = json!("sha256:0");
        assert!(accept_skill(&invalid).is_err());
        invalid["resources"] = json!("dynamic");
        assert!(accept_skill(&invalid).is_ok());
    }

    #[test]
    fn a_uri_with_another_spelling_is_not_in_normal_form() {
        for uri in ["skill://a/b%20c.md", "skill://a/SKILL.md", "git+x://a"] {
            assert!(is_normal_form(uri), "{uri}");
        }
        for uri in [
            "SKILL://a",
            "skill://a//b",
            "skill://a/./b",
            "skill://%61",
            "skill://a?b",
            "skill://a#b",
            "skill:a",
            "skill://a%2",
            "skill://a/",
            "skill://a%2Fb",
        ] {
            assert!(!is_normal_form(uri), "{uri}");
        }
    }
}
