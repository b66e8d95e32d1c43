//! `ci.detect`: lists projects, and the commands that build and test them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolgate_contract::printable::escape_line;
use toolgate_contract::{Effects, ResultText, Tool, ToolContext, ToolError};

use super::CiContext;
use super::build_tool::{BuildTool, ProjectAction};
use super::projects::find_all;

/// The `ci.detect` tool.
pub(super) struct DetectProjects(pub(super) CiContext);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DetectProjectsInput {
    /// Folder to search.
    #[serde(default)]
    path: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DetectProjectsOutput {
    /// Projects. A call without a kind uses the first project.
    projects: Vec<DetectedProject>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DetectedProject {
    /// Build tool of the project.
    kind: BuildTool,
    /// Folder of the project, relative to the workspace.
    folder: String,
    /// File that identified the project.
    file: String,
    /// Build command: a program and its arguments; null if there is none.
    build: Option<Vec<String>>,
    /// Test command.
    test: Option<Vec<String>>,
    /// Lint command.
    lint: Option<Vec<String>>,
    /// Command to fetch dependencies.
    restore: Option<Vec<String>>,
}

impl Tool for DetectProjects {
    const NAME: &'static str = "ci.detect";
    const TITLE: &'static str = "Detect projects";
    const DESCRIPTION: &'static str =
        "List the projects in the workspace, and the commands that the ci tools run.";
    const EFFECTS: Effects = Effects::Reads;
    const ALIASES: &'static [(&'static str, &'static str)] = super::PROJECT_ALIASES;
    const IDEMPOTENT: bool = true;
    type Input = DetectProjectsInput;
    type Output = DetectProjectsOutput;

    async fn run(&self, ctx: &ToolContext, input: Self::Input) -> Result<Self::Output, ToolError> {
        let folder = input.path.unwrap_or_else(|| ".".to_owned());
        let root = &self.0.programs.root;
        let found =
            root.run_blocking(ctx, move |root, watch| find_all(root, &folder, watch)).await?;
        let virtual_env = self.0.virtual_env();
        let projects = found.into_iter().map(|mut project| {
            project.facts.virtual_env.clone_from(&virtual_env);
            let argv = |verb| project.kind.argv(verb, &project.facts).ok();
            DetectedProject {
                kind: project.kind,
                build: argv(ProjectAction::Build),
                test: argv(ProjectAction::Test),
                lint: argv(ProjectAction::Lint),
                restore: argv(ProjectAction::Restore),
                folder: project.folder,
                file: project.file,
            }
        });
        Ok(DetectProjectsOutput { projects: projects.collect() })
    }

    fn result_text(output: &DetectProjectsOutput) -> ResultText {
        // Projects with the same commands share one entry.
        let mut entries: Vec<(String, String)> = Vec::new();
        for project in &output.projects {
            let commands = project.commands_text();
            let folder = escape_line(&project.folder);
            match entries.iter_mut().find(|(_, known)| *known == commands) {
                Some((folders, _)) => *folders += &format!(", {folder}"),
                None => entries.push((folder.into_owned(), commands)),
            }
        }
        let body = entries.iter().map(|(folders, commands)| format!("{folders}: {commands}"));
        let text = ResultText::from_body(body.collect::<String>());
        if output.projects.is_empty() { text.with_note("no project was found") } else { text }
    }
}

impl DetectedProject {
    /// Formats the project's build tool and its commands, one in each line.
    fn commands_text(&self) -> String {
        let Self { kind, file, build, test, lint, restore, folder: _ } = self;
        let verbs = [("build", build), ("test", test), ("lint", lint), ("restore", restore)];
        let verbs = verbs
            .iter()
            .filter_map(|(name, argv)| Some(format!("  {name}: {}\n", argv.as_ref()?.join(" "))));
        format!("{} ({file})\n{}", kind.name(), verbs.collect::<String>())
    }
}
