//! Validates files of an upstream's skills against the skills' own entries.

use data_encoding::HEXLOWER;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use toolgate_contract::{
    ResourceContents, ResourceData, Skill, SkillFileList, ToolContext, ToolError, ToolErrorKind,
};

use crate::listing::skill_index::{accept_skill, is_normal_form};
use crate::upstream::{Upstream, UpstreamCallRequest};

impl Upstream {
    /// Fetches the skill whose `SKILL.md` has the URI `uri`.
    pub(super) async fn fetch_skill(
        &self,
        ctx: &ToolContext,
        uri: &str,
    ) -> Result<Option<Skill>, ToolError> {
        let params = Map::from_iter([("uri".to_owned(), json!(uri))]);
        let answer = match self.call(ctx, UpstreamCallRequest::new("skills/get", uri, params)).await
        {
            Ok(answer) => answer,
            Err(ToolError { fault: ToolErrorKind::NotFound, .. }) => return Ok(None),
            Err(err) => return Err(err),
        };
        let skill = accept_skill(&answer["skill"]).and_then(|skill| match skill.uri == uri {
            true => Ok(skill),
            false => Err(format!("its URI is `{}`", skill.uri)),
        });
        let skill = skill.map_err(|why| {
            let message =
                format!("the upstream `{}` has no valid skill at `{uri}`: {why}", self.name);
            ToolError::new(ToolErrorKind::Failed, message)
        })?;
        self.fetched_skills.remember(skill.clone());
        Ok(Some(skill))
    }

    /// Refuses a skill URI that is not in normal form, so that each file has only one URI.
    pub(crate) fn check_normal_form(&self, uri: &str) -> Result<(), ToolError> {
        match is_normal_form(uri.trim_end_matches('/')) || !self.skill_index().has_scheme(uri) {
            true => Ok(()),
            false => Err(ToolError::not_found(format!(
                "`{uri}` is not in its normal form; use the URI from the skill's list of files"
            ))),
        }
    }

    /// Checks the `contents` of the file `uri` against the skill to which the file belongs.
    ///
    /// The approval of one version of a skill does not apply to another version.
    pub(crate) async fn check_skill_file(
        &self,
        ctx: &ToolContext,
        uri: &str,
        contents: &[ResourceContents],
    ) -> Result<(), ToolError> {
        let index = self.skill_index();
        let listed = index.skill_of(uri);
        let fetched = self.fetched_skills.skill_of(uri);
        let Some(known) = listed.or(fetched.as_ref()) else {
            let is_skill_file =
                |one: &ResourceContents| one.uri != uri && index.skill_of(&one.uri).is_some();
            return match contents.iter().find(|one| is_skill_file(one)) {
                Some(one) => Err(self.skill_mismatch(
                    uri,
                    &one.uri,
                    "the answer contains a file of that skill",
                )),
                None => Ok(()),
            };
        };
        let matches = |skill: &Skill| self.check_contents(skill, uri, contents);
        let Err(why) = matches(known) else { return Ok(()) };
        if fetched.as_ref().is_some_and(|fetched| matches(fetched).is_ok()) {
            return Ok(());
        }
        // The skill may have changed since.
        let now = self.fetch_skill(ctx, &known.uri).await?;
        if now.is_some_and(|now| matches(&now).is_ok()) {
            self.refresh();
            return Ok(());
        }
        Err(self.skill_mismatch(uri, &known.uri, &why))
    }

    fn skill_mismatch(&self, uri: &str, skill: &str, why: &str) -> ToolError {
        let message = format!(
            "`{uri}` of the upstream `{}` does not match its skill `{skill}` and must not be used: \
             {why}",
            self.name
        );
        ToolError::new(ToolErrorKind::Failed, message)
    }

    /// Checks a file's `contents` against the size, digest and front matter in `skill`.
    fn check_contents(
        &self,
        skill: &Skill,
        uri: &str,
        contents: &[ResourceContents],
    ) -> Result<(), String> {
        let [ResourceContents { uri: answered, held: data, .. }] = contents else {
            return Err(format!("the answer has {} contents instead of 1", contents.len()));
        };
        if answered != uri {
            return Err(format!("the answer contains `{answered}`"));
        }
        let bytes = match data {
            ResourceData::Text(text) => text.as_bytes(),
            ResourceData::Bytes(blob) => &blob.0,
        };
        if let SkillFileList::All(files) = &skill.files {
            let file = files.iter().find(|file| file.uri == uri);
            let file = file.ok_or("it is not among the files of the skill")?;
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
        let front_matter = self.world.front_matter(text)?;
        let keys = || front_matter.keys().chain(skill.front_matter.keys());
        let is_same = |key: &str| match (front_matter.get(key), skill.front_matter.get(key)) {
            (Some(one), Some(other)) => is_same_value(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        match keys().find(|key| !is_same(key)) {
            Some(key) => Err(format!("its front matter has a different `{key}`")),
            None => Ok(()),
        }
    }
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(&Sha256::digest(bytes)))
}

/// Returns true if two front matter values are equal. Numbers are compared by value, because YAML
/// and JSON may write them differently.
fn is_same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || one.as_f64().is_some_and(|one| other.as_f64() == Some(one))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| is_same_value(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(key, one): (&String, &Value)| {
                other.get(key).is_some_and(|other| is_same_value(one, other))
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
    fn numbers_are_equal_in_any_notation_and_other_values_are_compared_exactly() {
        let one = json!({ "a": [1, { "b": 2.0 }], "c": "x" });
        assert!(is_same_value(&one, &json!({ "c": "x", "a": [1.0, { "b": 2 }] })));
        for other in [
            json!({ "a": [1, { "b": 2 }] }),
            json!({ "a": [1, { "b": 2 }], "c": "x", "d": null }),
            json!({ "a": [1], "c": "x" }),
            json!({ "a": [1, { "b": "2" }], "c": "x" }),
        ] {
            assert!(!is_same_value(&one, &other), "{other}");
        }
    }

    #[test]
    fn a_digest_has_the_form_that_skills_use() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest(b""), empty);
    }
}
