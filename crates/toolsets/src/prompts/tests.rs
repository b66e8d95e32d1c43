//! Tests of prompts from files, each in its own workspace.

mod prompt_files;
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

use super::{PromptFolder, PromptSettings, SHIPPED, shipped, sources};
use toolgate_world::Root;

/// Test bench: a workspace with its prompts.
struct PromptTestBench {
    dir: TempDir,
    root: Root,
    folder: PromptFolder,
}

impl PromptTestBench {
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

    /// Writes the file of the prompt `name` with the front matter `head` and the text `body`.
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
        all.into_iter().find(|prompt| prompt.spec().name == name).expect("the prompt exists")
    }

    /// Renders the prompt `name` with `arguments`.
    async fn render(
        &self,
        name: &str,
        arguments: &[(&str, &str)],
    ) -> Result<Vec<PromptMessage>, ToolError> {
        let prompt = self.find(name).await;
        Ok(prompt.make(&ctx(), to_arguments(arguments)).await?.messages)
    }

    async fn completions(&self, prompt: &str, argument: &str, prefix: &str) -> Vec<String> {
        let request = CompletionRequest {
            target: CompletionTarget::Prompt(prompt.to_owned()),
            argument: argument.to_owned(),
            prefix: prefix.to_owned(),
            other_arguments: PromptArguments::default(),
        };
        self.find(prompt).await.complete(&ctx(), &request).await.unwrap()
    }
}

fn ctx() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

fn to_arguments(arguments: &[(&str, &str)]) -> PromptArguments {
    arguments.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

/// Returns the text of a prompt message. Panics if the message has no text.
fn text(message: &PromptMessage) -> &str {
    match &message.content.shown {
        ContentBody::Text(text) => text,
        other => panic!("the message is not text: {other:?}"),
    }
}

#[tokio::test]
async fn every_built_in_prompt_renders_with_its_arguments() {
    let bench = PromptTestBench::new();
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
        let rendered = prompt.make(&ctx(), arguments.clone()).await.unwrap();
        let first = text(&rendered.messages[0]);
        assert!(arguments.values().all(|value| first.contains(value)), "{first}");
        assert!(!first.contains("{{"), "{first}");
        let required = spec.arguments.iter().filter(|it| it.required);
        let required = required.map(|it| (it.name.clone(), "<it>".to_owned())).collect();
        let rendered = prompt.make(&ctx(), required).await.unwrap();
        let first = text(&rendered.messages[0]);
        assert!(!first.contains("\n\n\n"), "{first}");
        assert_eq!(rendered.messages[0].role, MessageRole::User);
    }
}

#[test]
fn a_folder_outside_the_workspace_is_refused() {
    PromptSettings::default().check().unwrap();
    let outside = PromptSettings { folder: "../x".to_owned(), ..PromptSettings::default() };
    let message = outside.check().unwrap_err();
    assert!(message.starts_with("`prompts.folder` is `../x`, which is outside"), "{message}");
}

#[tokio::test]
async fn the_workspace_comes_before_built_in_prompts_and_off_disables_both() {
    let bench = PromptTestBench::new();
    bench.prompt("review", "title: Ours\n", "Ours.");
    let off = PromptSettings { folder: "off".to_owned(), ..PromptSettings::default() };
    off.check().unwrap();
    assert!(sources(&bench.root, &off).is_empty());
    let sources = sources(&bench.root, &PromptSettings::default());
    assert_eq!(sources.len(), 2);
    assert_eq!(sources[0].all().await[0].spec().title.as_deref(), Some("Ours"));
    assert_eq!(sources[1].all().await.len(), SHIPPED.len());
}
