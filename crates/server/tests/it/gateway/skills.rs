//! Tests of upstream skills, which cannot replace the workspace's own skills.

use serde_json::{Value, json};

use super::real::{node, tool};
use super::{checkout, stdio};
use crate::support::{TempWorkspace, TestMcpClient};

/// Returns a workspace with a skill `tea` of its own, and an upstream with the skills `pdf` and
/// `tea`.
fn with_skills(live: bool, more: &str) -> TempWorkspace {
    let skill = |name: &str, about: &str| {
        format!(
            "---\nname: {name}\ndescription: {about}\nmetadata:\n  version: \"1.0\"\n---\n\n# {about}\n"
        )
    };
    let workspace = TempWorkspace::new()
        .file("skills/tea/SKILL.md", skill("tea", "Ours"))
        .file("theirs/tea/SKILL.md", skill("tea", "Theirs"))
        .file("theirs/pdf/SKILL.md", skill("pdf", "Reads forms"))
        .file("theirs/pdf/forms.md", "# Forms\n");
    let script = checkout().join("tests/upstreams/skills.mjs").display().to_string();
    let folder = workspace.path("theirs").display().to_string();
    let mut command = vec![node(), script, tool("servers"), folder];
    command.extend(live.then(|| "--live".to_owned()));
    workspace.file("toolgate.toml", format!("[upstream.up]\ncommand = {command:?}\n{more}\n"))
}

fn read(client: &mut TestMcpClient, uri: &str) -> Value {
    client.ask("resources/read", json!({ "uri": uri }))
}

/// Returns the text in the answer to the read of a skill file.
#[track_caller]
fn contents(answer: &Value) -> &str {
    answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn list_skills(client: &mut TestMcpClient) -> Vec<String> {
    let answer = client.ask("skills/list", json!({}));
    let all = answer["result"]["skills"].as_array().unwrap_or_else(|| panic!("{answer}"));
    all.iter().map(|skill| skill["uri"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn skills_of_an_upstream_are_listed_fetched_and_read_next_to_our_own() {
    let workspace = with_skills(false, "");
    let mut client = stdio(&workspace);
    let all = ["skill://pdf/SKILL.md", "skill://tea/SKILL.md", "skill://toolgate/SKILL.md"];
    assert_eq!(list_skills(&mut client), all);
    let got = client.ask("skills/get", json!({ "uri": all[0] }));
    let skill = &got["result"]["skill"];
    assert_eq!(skill["frontmatter"]["description"], "Reads forms", "{got}");
    assert_eq!(skill["resources"].as_array().map(Vec::len), Some(2), "{got}");
    assert_eq!(contents(&read(&mut client, "skill://pdf/forms.md")), "# Forms\n");
    assert!(contents(&read(&mut client, all[0])).ends_with("# Reads forms\n"));
    let inside = client.ask("resources/directory/read", json!({ "uri": "skill://pdf" }));
    let inside = inside["result"]["resources"].as_array().unwrap_or_else(|| panic!("{inside}"));
    let uris: Vec<_> = inside.iter().map(|one| one["uri"].as_str().unwrap()).collect();
    assert_eq!(uris, ["skill://pdf/SKILL.md", "skill://pdf/forms.md"]);
    for uri in ["skill://nobody/SKILL.md", "other://pdf/SKILL.md"] {
        let none = client.ask("skills/get", json!({ "uri": uri }));
        assert_eq!(none["error"]["code"], -32602, "{none}");
        assert!(none["error"]["message"].as_str().unwrap().contains("no skill is at"), "{none}");
    }
    assert_eq!(read(&mut client, "skill://nobody/SKILL.md")["error"]["code"], -32602);
}

#[test]
fn our_own_skill_wins_over_an_upstream_skill_of_the_same_name() {
    let workspace = with_skills(false, "");
    // The listing of the upstream is known before our own skills are read.
    stdio(&workspace).tools();
    for uri in ["skill://tea/SKILL.md", "skill://toolgate/SKILL.md"] {
        let mut client = stdio(&workspace);
        let answer = read(&mut client, uri);
        assert!(!contents(&answer).contains("Theirs"), "{answer}");
        let got = client.ask("skills/get", json!({ "uri": uri }));
        assert!(!got.to_string().contains("Theirs") && got.get("result").is_some(), "{got}");
    }
    // Without our own skill of that name, the upstream's is served.
    let mut client = stdio(&workspace);
    std::fs::remove_dir_all(workspace.path("skills")).unwrap();
    let answer = read(&mut client, "skill://tea/SKILL.md");
    assert!(contents(&answer).contains("Theirs"), "{answer}");
}

#[test]
fn a_file_that_does_not_match_its_skill_is_refused_unless_the_skill_changed() {
    let workspace = with_skills(true, "");
    let mut client = stdio(&workspace);
    list_skills(&mut client);
    let was = workspace.read("theirs/pdf/SKILL.md");
    for (lie, why) in [
        (was.replace("# Reads", "# Leaks"), "its digest is"),
        (format!("{was}\nand more"), "bytes, not"),
    ] {
        std::fs::write(workspace.path("theirs/pdf/lie"), lie).unwrap();
        let refused = read(&mut client, "skill://pdf/SKILL.md").to_string();
        assert!(refused.contains(why) && refused.contains("must not be used"), "{refused}");
        assert!(!refused.contains("Leaks"), "{refused}");
    }
    std::fs::remove_file(workspace.path("theirs/pdf/lie")).unwrap();
    assert_eq!(contents(&read(&mut client, "skill://pdf/SKILL.md")), was);
    // The server lists the old version and returns the current one.
    std::fs::write(workspace.path("theirs/pdf/forms.md"), "# More forms\n").unwrap();
    assert_eq!(contents(&read(&mut client, "skill://pdf/forms.md")), "# More forms\n");
}

#[test]
fn skills_of_an_upstream_with_hidden_resources_are_hidden() {
    for more in ["parts = [\"prompts\", \"instructions\"]", "[tools]\ndeny = [\"up.resources\"]"] {
        let workspace = with_skills(false, more);
        let mut client = stdio(&workspace);
        client.tools();
        let all = ["skill://tea/SKILL.md", "skill://toolgate/SKILL.md"];
        assert_eq!(list_skills(&mut client), all, "{more}");
        let none = client.ask("skills/get", json!({ "uri": "skill://pdf/SKILL.md" }));
        assert_eq!(none["error"]["code"], -32602, "{none}");
        assert!(read(&mut client, "skill://pdf/SKILL.md").get("error").is_some());
    }
}

#[test]
fn unlisted_files_and_other_spellings_in_a_skill_folder_are_refused() {
    let workspace = with_skills(true, "").file("theirs/pdf/run.sh", "rm -r .\n");
    let mut client = stdio(&workspace);
    list_skills(&mut client);
    for (uri, why) in [
        ("skill://pdf/run.sh", "it is not among the files of the skill"),
        ("skill://pdf/./forms.md", "is not in its normal form"),
        ("skill://pdf/f%6Frms.md", "is not in its normal form"),
        ("skill://no/../pdf/forms.md", "is not in its normal form"),
    ] {
        let refused = read(&mut client, uri).to_string();
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(contents(&read(&mut client, "skill://pdf/forms.md")), "# Forms\n");
}

#[test]
fn files_of_an_unlisted_skill_are_checked_against_it() {
    let workspace = with_skills(true, "");
    let mut client = stdio(&workspace);
    list_skills(&mut client);
    let late = workspace.read("theirs/pdf/SKILL.md").replace("name: pdf", "name: late");
    let workspace = workspace.file("theirs/late/SKILL.md", late.as_str());
    let uri = "skill://late/SKILL.md";
    let got = client.ask("skills/get", json!({ "uri": uri }));
    assert_eq!(got["result"]["skill"]["uri"], uri, "{got}");
    assert_eq!(contents(&read(&mut client, uri)), late);
    let workspace = workspace.file("theirs/late/lie", late.replace("Reads", "Leaks"));
    let refused = read(&mut client, uri).to_string();
    assert!(refused.contains("its digest is") && !refused.contains("Leaks"), "{refused}");
    drop(workspace);
}

#[test]
fn a_deny_rule_hides_a_skill_and_a_confirm_rule_blocks_fetching_it() {
    for effect in ["deny", "confirm"] {
        let rule = format!(
            "[[policy.rules]]\nname = \"pdf\"\neffect = {effect:?}\ntools = [\"up.resources\"]\n\
             when = 'input.uri.startsWith(\"skill://pdf\")'\n"
        );
        let workspace = with_skills(false, &rule);
        let mut client = stdio(&workspace);
        let shown = list_skills(&mut client).contains(&"skill://pdf/SKILL.md".to_owned());
        assert_eq!(shown, effect == "confirm");
        let refused = client.ask("skills/get", json!({ "uri": "skill://pdf/SKILL.md" }));
        assert!(refused.get("error").is_some(), "{refused}");
        assert!(!refused.to_string().contains("Reads forms"), "{refused}");
    }
}

#[test]
fn an_upstream_skill_does_not_replace_our_own_hidden_one() {
    let workspace = with_skills(false, "[tools]\nallow = [\"files.*\", \"up.*\"]");
    stdio(&workspace).tools();
    let mut client = stdio(&workspace);
    let refused = read(&mut client, "skill://tea/SKILL.md");
    assert!(refused.get("error").is_some(), "{refused}");
    let refused = client.ask("skills/get", json!({ "uri": "skill://tea/SKILL.md" }));
    assert_eq!(refused["error"]["code"], -32602, "{refused}");
    assert_eq!(list_skills(&mut client), ["skill://pdf/SKILL.md"]);
}
