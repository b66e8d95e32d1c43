//! Example of a skill whose files are resources.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use toolgate_contract::{
    ResourceSpec, Skill, SkillFile, SkillFileList, SkillSource, ToolContext, ToolFuture,
};
use toolgate_service::{ServerBuilder, StaticResourceSource};

/// Name of the example skill.
const NAME: &str = "brewing-tea";
/// Description of the skill, by which a model decides when to load the skill.
const ABOUT: &str = "Brews tea. Use when somebody asks for a cup of tea.";
/// URI of the skill's folder.
const FOLDER: &str = "skill://brewing-tea";

/// Files of the skill: path in the skill's folder, and content.
const FILES: [(&str, &str); 3] = [
    ("SKILL.md", include_str!("skill/SKILL.md")),
    ("references/black.md", include_str!("skill/references/black.md")),
    ("references/green.md", include_str!("skill/references/green.md")),
];

/// Adds the skill of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    let resources =
        FILES.iter().fold(StaticResourceSource::new("skills"), |resources, (path, text)| {
            let uri = format!("{FOLDER}/{path}");
            let (name, about) = match *path {
                "SKILL.md" => (NAME, ABOUT),
                path => (path, "Instructions for one kind of tea."),
            };
            resources.text(
                ResourceSpec::new(uri, name)
                    .with_description(about)
                    .with_media_type("text/markdown"),
                *text,
            )
        });
    builder.resources(resources).skills(BrewingSkillSource(skill()))
}

/// Skill source that offers only the example skill.
struct BrewingSkillSource(Skill);

/// Returns the example skill with the digests of its files.
fn skill() -> Skill {
    let fields = [("name", NAME), ("description", ABOUT)];
    let front_matter: Map<String, Value> =
        fields.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
    let files = FILES.iter().map(|(path, text)| {
        let hash = Sha256::digest(text);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        SkillFile {
            uri: format!("{FOLDER}/{path}"),
            digest: format!("sha256:{hex}"),
            bytes: text.len() as u64,
        }
    });
    let files = SkillFileList::All(files.collect());
    Skill { uri: format!("{FOLDER}/SKILL.md"), front_matter, files }
}

impl SkillSource for BrewingSkillSource {
    fn all<'a>(&'a self, _ctx: &'a ToolContext) -> ToolFuture<'a, Vec<Skill>> {
        Box::pin(async { Ok(vec![self.0.clone()]) })
    }

    fn get<'a>(&'a self, _ctx: &'a ToolContext, uri: &'a str) -> ToolFuture<'a, Option<Skill>> {
        Box::pin(async move { Ok((uri == self.0.uri).then(|| self.0.clone())) })
    }
}
