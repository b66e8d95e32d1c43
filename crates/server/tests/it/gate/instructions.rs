//! Tests of skills and prompts in the workspace. Agents follow these texts, so tools may write them
//! only if a setting allows it.

use serde_json::json;

use crate::support::{TempWorkspace, over_both_with, refusal, structured};

#[test]
fn skills_and_prompts_are_writable_only_if_a_setting_says_so() {
    for writable in ["false", "true"] {
        let workspace = TempWorkspace::new()
            .file("skills/tea/SKILL.md", "before\n")
            .file("texts/tea.md", "before\n");
        let settings = [
            ("prompts_folder", "texts"),
            ("prompts_writable", writable),
            ("skills_writable", writable),
        ];
        over_both_with(&workspace, &settings, |client| {
            for path in ["skills/tea/SKILL.md", "texts/tea.md"] {
                let write = json!({ "path": path, "content": "after\n", "overwrite": true });
                let answer = client.call("files_write", write);
                if writable == "true" {
                    structured(&answer);
                    assert_eq!(workspace.read(path), "after\n");
                } else {
                    let message = refusal(&answer);
                    assert!(message.contains("protected"), "{message}");
                    assert_eq!(workspace.read(path), "before\n");
                }
            }
            let elsewhere =
                json!({ "path": "src/skills/tea.md", "content": "", "overwrite": true });
            structured(&client.call("files_write", elsewhere));
        });
    }
}
