//! Prompts made from files, in workspaces of their own.

mod sheets;
mod folders;
mod files;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use toolgate_contract::{
    AnyPrompt, Caller, CompletionRequest, CompletionTarget, ContentBody, MessageRole,
    PromptArguments, PromptMessage, PromptSource, ToolContext, ToolError,
};

use super::{PromptFolder, PromptSettings, shipped, sources};
use toolgate_world::Root;

/// A workspace, and its prompts.
struct Bench {
    dir: TempDir,
    root: Root,
    folder: PromptFolder,
}

impl Bench {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let folder = PromptFolder::new(&root, &PromptSettings::default().folder);
        Self { dir, root, folder }
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Puts the prompt `name` of `head` and `body` in the folder.
    fn prompt(&self, name: &str, head: &str, body: &str) {
        self.put(&format!(".toolgate/prompts/{name}.md"), format!("---\n{head}---\n{body}"));
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    async fn names(&self) -> Vec<String> {
        self.folder.all().await.iter().map(|prompt| prompt.spec().name.clone()).collect()
    }

    async fn find(&self, name: &str) -> Arc<dyn AnyPrompt> {
        let all = self.folder.all().await;
        all.into_iter().find(|prompt| prompt.spec().name == name).expect("it is there")
    }

    /// What the prompt `name` says, told `arguments`.
    async fn made(
        &self,
        name: &str,
        arguments: &[(&str, &str)],
    ) -> Result<Vec<PromptMessage>, ToolError> {
        let prompt = self.find(name).await;
        Ok(prompt.make(&ctx(), told(arguments)).await?.messages)
    }

    async fn offered(&self, prompt: &str, argument: &str, so_far: &str) -> Vec<String> {
        let asked = CompletionRequest {
            target: CompletionTarget::Prompt(prompt.to_owned()),
            argument: argument.to_owned(),
            prefix: so_far.to_owned(),
            other_arguments: PromptArguments::default(),
        };
        self.find(prompt).await.complete(&ctx(), &asked).await.unwrap()
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

fn told(arguments: &[(&str, &str)]) -> PromptArguments {
    arguments.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

/// The text of a message.
fn text(message: &PromptMessage) -> &str {
    match &message.content.shown {
        ContentBody::Text(text) => text,
        other => panic!("it is no text: {other:?}"),
    }
}

#[tokio::test]
async fn those_that_come_along_can_all_be_made_and_say_what_they_are_told() {
    let bench = Bench::new();
    let all = shipped(&bench.root);
    let names: Vec<_> = all.iter().map(|prompt| prompt.spec().name.as_str()).collect();
    assert_eq!(names, ["bootstrap", "explain", "find-cause", "review", "write-tests"]);
    for prompt in all {
        let spec = prompt.spec();
        assert!(spec.title.is_some() && spec.description.is_some() && !spec.icons.is_empty());
        assert!(
            spec.arguments.iter().all(|argument| argument.description.is_some()),
            "{}",
            spec.name
        );
        let arguments: PromptArguments =
            spec.arguments.iter().map(|it| (it.name.clone(), format!("<{}>", it.name))).collect();
        let made = prompt.make(&ctx(), arguments.clone()).await.unwrap();
        let said = text(&made.messages[0]);
        assert!(arguments.values().all(|value| said.contains(value)), "{said}");
        assert!(!said.contains("{{"), "{said}");
        let needed = spec.arguments.iter().filter(|it| it.required);
        let needed = needed.map(|it| (it.name.clone(), "<it>".to_owned())).collect();
        let made = prompt.make(&ctx(), needed).await.unwrap();
        assert!(!text(&made.messages[0]).contains("\n\n\n"), "{}", text(&made.messages[0]));
        assert_eq!(made.messages[0].role, MessageRole::User);
    }
}

#[test]
fn a_folder_that_is_none_of_the_workspace_is_refused() {
    PromptSettings::default().check().unwrap();
    let wrong = PromptSettings { folder: "../x".to_owned(), ..PromptSettings::default() }
        .check()
        .unwrap_err();
    assert!(wrong.starts_with("`prompts.folder` names `../x`, which is outside"), "{wrong}");
}

#[tokio::test]
async fn the_settings_say_which_are_offered_and_a_workspace_s_own_comes_first() {
    let bench = Bench::new();
    bench.prompt("review", "title: Ours\n", "Ours.");
    let count = |settings: &PromptSettings| sources(&bench.root, settings).len();
    assert_eq!(count(&PromptSettings { enabled: false, ..PromptSettings::default() }), 0);
    assert_eq!(count(&PromptSettings { shipped: false, ..PromptSettings::default() }), 1);
    let sources = sources(&bench.root, &PromptSettings::default());
    assert_eq!(sources.len(), 2);
    assert_eq!(sources[0].all().await[0].spec().title.as_deref(), Some("Ours"));
}
