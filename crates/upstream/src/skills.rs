//! The skills of an upstream: listed as it lists them, and held against what is read of them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use toolgate_contract::{
    BoxFuture, Contents, Ctx, Fault, Held, Skill, SkillFiles, Skills, ToolError, ToolSpec,
};
use toolgate_dialects::mcp::upstream::skill;

use crate::listing::Listing;
use crate::resources::guard;
use crate::upstream::{Asked, Upstream};

/// The skills of an upstream.
pub(crate) struct Source {
    upstream: Arc<Upstream>,
    guard: ToolSpec,
}

impl Source {
    pub(crate) fn new(upstream: &Arc<Upstream>) -> Arc<Self> {
        Arc::new(Self { upstream: upstream.clone(), guard: guard(upstream) })
    }

    /// Whether `uri` is this server's own, whatever an upstream says.
    fn is_own(&self, uri: &str) -> bool {
        self.upstream.keeps.is_own_uri(uri)
    }
}

impl Skills for Source {
    fn guard(&self) -> Option<&ToolSpec> {
        Some(&self.guard)
    }

    fn all<'a>(&'a self, _ctx: &'a Ctx) -> BoxFuture<'a, Result<Vec<Skill>, ToolError>> {
        Box::pin(async move {
            self.upstream.is_listed().await;
            let listing = self.upstream.listing();
            let all = listing.skills.iter().filter_map(skill);
            let mut all: Vec<_> = all.filter(|one| !self.is_own(&one.uri)).collect();
            all.sort_by(|a, b| a.uri.cmp(&b.uri));
            all.dedup_by(|a, b| a.uri == b.uri);
            Ok(all)
        })
    }

    fn get<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Option<Skill>, ToolError>> {
        Box::pin(async move {
            if self.is_own(uri) {
                return Ok(None);
            }
            self.upstream.is_listed().await;
            let listing = self.upstream.listing();
            match listed(&listing, uri) {
                Some(skill) => Ok(Some(skill)),
                None if listing.has_skills => self.upstream.skill(ctx, uri).await,
                None => Ok(None),
            }
        })
    }
}

fn listed(listing: &Listing, uri: &str) -> Option<Skill> {
    listing.skills.iter().find(|entry| entry["uri"] == uri).and_then(skill)
}

/// The skill of which `uri` is a file.
fn skill_of(listing: &Listing, uri: &str) -> Option<Skill> {
    let is_of = |entry: &&Value| {
        let mut files = entry["resources"].as_array().into_iter().flatten();
        entry["uri"] == uri || files.any(|file| file["uri"] == uri)
    };
    listing.skills.iter().find(is_of).and_then(skill)
}

impl Upstream {
    /// The skill whose `SKILL.md` is read by `uri`, as the upstream has it now.
    async fn skill(&self, ctx: &Ctx, uri: &str) -> Result<Option<Skill>, ToolError> {
        let params = Map::from_iter([("uri".to_owned(), json!(uri))]);
        match self.carry(ctx, Asked::of("skills/get", uri, params)).await {
            Ok(said) => match skill(&said["skill"]) {
                Some(one) if one.uri == uri => Ok(Some(one)),
                Some(_) | None => {
                    let message = format!("the skill `{uri}` was answered with none");
                    Err(ToolError::new(Fault::Failed, message))
                }
            },
            Err(ToolError { fault: Fault::NotFound, .. }) => Ok(None),
            Err(err) => Err(err),
        }
    }

    /// Refuses `contents`, which `uri` was answered with, where that is a file of a skill and not
    /// what the skill says: whoever agreed to the one has not agreed to the other.
    pub(crate) async fn keeps_to_skills(
        &self,
        ctx: &Ctx,
        uri: &str,
        contents: &[Contents],
    ) -> Result<(), ToolError> {
        let Some(known) = skill_of(&self.listing(), uri) else { return Ok(()) };
        let is_as_said = |skill: &Skill| self.is_as_said(skill, uri, contents);
        let Err(why) = is_as_said(&known) else { return Ok(()) };
        // It may have another by now.
        let now = self.skill(ctx, &known.uri).await?;
        if now.is_some_and(|now| now != known && is_as_said(&now).is_ok()) {
            self.look_again();
            return Ok(());
        }
        let (name, skill) = (&self.name, &known.uri);
        let message = format!(
            "`{uri}` of the upstream `{name}` is not what its skill `{skill}` says, and is not to \
             be used: {why}"
        );
        Err(ToolError::new(Fault::Failed, message))
    }

    /// Holds `contents`, which `uri` was answered with, against what `skill` says of it.
    fn is_as_said(&self, skill: &Skill, uri: &str, contents: &[Contents]) -> Result<(), String> {
        let [Contents { uri: of, held, .. }] = contents else {
            return Err(format!("it was answered with {} contents", contents.len()));
        };
        if of != uri {
            return Err(format!("it was answered with `{of}`"));
        }
        let bytes = match held {
            Held::Text(text) => text.as_bytes(),
            Held::Bytes(blob) => &blob.0,
        };
        if let SkillFiles::All(files) = &skill.files {
            let file = files.iter().find(|file| file.uri == uri);
            let file = file.ok_or("it is no file of it any more")?;
            if bytes.len() as u64 != file.bytes {
                return Err(format!("it has {} bytes, not {}", bytes.len(), file.bytes));
            }
            let digest = digest(bytes);
            if digest != file.digest {
                return Err(format!("its digest is `{digest}`, not `{}`", file.digest));
            }
        }
        if skill.uri != uri {
            return Ok(());
        }
        let text = str::from_utf8(bytes).map_err(|_| "it is not UTF-8")?;
        let said = self.world.front_matter(text)?;
        let keys = || said.keys().chain(skill.front_matter.keys());
        let is_same = |key: &str| match (said.get(key), skill.front_matter.get(key)) {
            (Some(one), Some(other)) => is_equal(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        match keys().find(|key| !is_same(key)) {
            Some(key) => Err(format!("its front matter says another `{key}`")),
            None => Ok(()),
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    let hex = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("sha256:{hex}")
}

/// Whether two values say the same: YAML and JSON write numbers otherwise.
fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(key, one): (&String, &Value)| {
                other.get(key).is_some_and(|other| is_equal(one, other))
            };
            one.len() == other.len() && one.iter().all(has)
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_equal_however_they_are_written_and_nothing_else_is_that_differs() {
        let one = json!({ "a": [1, { "b": 2.0 }], "c": "x" });
        assert!(is_equal(&one, &json!({ "c": "x", "a": [1.0, { "b": 2 }] })));
        for other in [
            json!({ "a": [1, { "b": 2 }] }),
            json!({ "a": [1, { "b": 2 }], "c": "x", "d": null }),
            json!({ "a": [1], "c": "x" }),
            json!({ "a": [1, { "b": "2" }], "c": "x" }),
        ] {
            assert!(!is_equal(&one, &other), "{other}");
        }
    }

    #[test]
    fn a_digest_is_written_as_skills_write_it() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }
}
