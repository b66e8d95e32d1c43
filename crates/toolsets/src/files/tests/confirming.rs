//! Tests of the confirmation before a folder is deleted.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use toolgate_contract::{
    Caller, ClientAnswer, ClientAnswers, ClientQuestion, ClientQuestions, ElicitationAnswer,
    QuestionAsker, QuestionSender, QuestionSupport, ToolContext, ToolFuture,
};

use super::space::TestWorkspace;
use crate::files::{FileSettings, FolderDeleteConfirmation};

/// Simulated user who gives the same answer to every confirmation, and records the messages.
struct ConfirmationAnswerSender {
    choice: ElicitationAnswer,
    messages: Mutex<Vec<String>>,
}

impl QuestionSender for ConfirmationAnswerSender {
    fn ask(&self, questions: ClientQuestions) -> ToolFuture<'_, ClientAnswers> {
        let answers = questions.into_iter().map(|(key, question)| {
            let ClientQuestion::Form { message, .. } = question else {
                panic!("not a form: {question:?}")
            };
            self.messages.lock().unwrap().push(message);
            (key, ClientAnswer::Choice(self.choice.clone()))
        });
        let answers: ClientAnswers = answers.collect();
        Box::pin(async move { Ok(answers) })
    }
}

fn context_without_person() -> ToolContext {
    ToolContext::detached(Caller::local(), Instant::now() + Duration::from_secs(60))
}

/// Deletes `path` while a simulated user answers `choice`, or without a user if that is `None`.
/// Returns the error if the call is refused, and the messages of the questions.
async fn check(
    confirm_folders: FolderDeleteConfirmation,
    choice: Option<ElicitationAnswer>,
    path: &str,
) -> (Result<(), String>, Vec<String>) {
    let space = TestWorkspace::with(&FileSettings { confirm_folders, ..FileSettings::default() });
    space.put("folder/a", "");
    space.put("folder/.hidden/b", "");
    space.put("folder/.gitignore", "a");
    space.put("file", "");
    space.symlink("folder", "link");
    let support = QuestionSupport { form: choice.is_some(), ..QuestionSupport::default() };
    let choice = choice.unwrap_or(ElicitationAnswer::Declined);
    let person = Arc::new(ConfirmationAnswerSender { choice, messages: Mutex::default() });
    let ctx = ToolContext {
        asker: QuestionAsker::during_call(support, person.clone()),
        ..context_without_person()
    };
    let input = json!({ "path": path, "recursive": true });
    let deleted = space.run_as(&ctx, "files.delete", input).await;
    assert_eq!(space.has(path), deleted.is_err());
    let messages = person.messages.lock().unwrap().clone();
    let refused = deleted.map(drop).map_err(|failed| {
        assert_eq!(failed.reason, "not_allowed", "{failed:?}");
        failed.message
    });
    (refused, messages)
}

fn accepted() -> Option<ElicitationAnswer> {
    Some(ElicitationAnswer::Accepted(Map::new()))
}

#[tokio::test]
async fn the_confirmation_names_the_folder_and_its_number_of_entries() {
    for setting in [FolderDeleteConfirmation::WhenAble, FolderDeleteConfirmation::Always] {
        let (deleted, messages) = check(setting, accepted(), "folder").await;
        assert_eq!(deleted, Ok(()));
        let [message] = &messages[..] else { panic!("not one question: {messages:?}") };
        assert!(message.contains("`folder`") && message.contains("4 files and dir"), "{message}");
    }
}

#[tokio::test]
async fn a_folder_stays_if_the_person_declines() {
    for choice in [ElicitationAnswer::Declined, ElicitationAnswer::Canceled] {
        let (deleted, _) = check(FolderDeleteConfirmation::WhenAble, Some(choice), "folder").await;
        assert!(deleted.unwrap_err().contains("files.confirm_folders"));
    }
}

#[tokio::test]
async fn the_setting_decides_if_nobody_can_be_asked() {
    assert_eq!(check(FolderDeleteConfirmation::WhenAble, None, "folder").await.0, Ok(()));
    assert_eq!(check(FolderDeleteConfirmation::Never, None, "folder").await.0, Ok(()));
    let (deleted, _) = check(FolderDeleteConfirmation::Always, None, "folder").await;
    let message = deleted.unwrap_err();
    assert!(message.contains("files.confirm_folders") && message.contains("cannot ask anyone"));
}

#[tokio::test]
async fn files_symlinks_and_the_setting_never_need_no_confirmation() {
    for (setting, path) in [
        (FolderDeleteConfirmation::Always, "file"),
        (FolderDeleteConfirmation::Always, "link"),
        (FolderDeleteConfirmation::Never, "folder"),
    ] {
        let (deleted, messages) = check(setting, Some(ElicitationAnswer::Declined), path).await;
        assert_eq!((deleted, messages), (Ok(()), Vec::new()), "{path}");
    }
}
