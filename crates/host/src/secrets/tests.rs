//! Tests that secrets are recognized by their format.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn nothing() -> SecretSet {
    SecretSet::default()
}

#[track_caller]
fn check(text: &str, clean: &str) {
    assert_eq!(nothing().redact(text), clean);
}

#[test]
fn values_of_secret_variables_are_redacted() {
    let secrets = SecretSet::from_variables([
        ("ZYRA_API_KEY", "deadbeefcafe"),
        ("DB_PASSWORD", "deadbeefcafe-and-more"),
        ("HOME", "/home/ada"),
        ("GITHUB_TOKEN", "1"),
    ]);
    let text = "at /home/ada: deadbeefcafe-and-more, deadbeefcafe, 1";
    assert_eq!(secrets.redact(text), "at /home/ada: [redacted], [redacted], 1");
}

#[test]
fn secrets_of_a_call_are_found_by_their_names() {
    let secrets = nothing().call_secrets(&json!({
        "command": "deploy",
        "args": ["--token", "first-one", "--verbose", "-password=second-one", "API_KEY=third-one",
                 "--token", "--dry-run", "plain-one"],
        "env": { "AWS_SECRET_ACCESS_KEY": "fourth-one", "LANG": "plain-two" },
        "more": [{ "credentials": { "user": ["fifth-one"] } }],
    }));
    let text = "first-one second-one third-one fourth-one fifth-one plain-one plain-two";
    let clean = format!("{} plain-one plain-two", [REDACTED; 5].join(" "));
    assert_eq!(redact_texts(&secrets.values, text), clean);
}

#[test]
fn configured_names_mark_secrets_in_variables_calls_and_texts() {
    let names = ["x-pin".to_owned(), "Session ID".to_owned()];
    let variables = [("X_PIN", "of-a-variable"), ("SPIN", "left-alone")];
    let secrets = SecretSet::from_named_variables(variables, &names);
    assert_eq!(secrets.redact("of-a-variable left-alone"), "[redacted] left-alone");
    let call = secrets.call_secrets(&json!({
        "xPin": "first-one", "args": ["--session-id", "second-one", "--spin", "plain-one"],
    }));
    let text = "first-one second-one plain-one";
    assert_eq!(redact_texts(&call.values, text), "[redacted] [redacted] plain-one");
    let made = PromptArguments::from([("x_pin".to_owned(), "third-one".to_owned())]);
    assert_eq!(redact_texts(&secrets.argument_secrets(&made).values, "third-one"), "[redacted]");
    let text = r#"X-PIN=1234 --session_id 5 {"sessionId": "6"} spin=7 {"session": "8"}"#;
    let clean = r#"X-PIN=[redacted] --session_id [redacted] {"sessionId": "[redacted]"} spin=7 {"session": "8"}"#;
    assert_eq!(secrets.redact(text), clean);
    assert_eq!(secrets.with_hidden_values(&[]).redact("xpin=9"), "xpin=[redacted]");
}

#[test]
fn a_call_without_secrets_yields_none() {
    for input in [
        json!({ "path": "token.txt", "content": "password" }),
        json!({ "cursor": "abcdefghijkl", "key": "value-of-it", "max_tokens": 100_000 }),
        json!({ "args": ["--tokenizer", "cl100k_base", "a=b"] }),
    ] {
        assert!(nothing().call_secrets(&input).values.is_empty(), "{input}");
    }
}

fn refused(of_call: &CallSecrets) -> CallError {
    let problem =
        |text: &str| ValidationProblem { pointer: text.to_owned(), message: text.to_owned() };
    let problems = vec![problem("/a"), problem("/b secret-number-1")];
    nothing().redact_error(of_call, CallError::InvalidInput { problems })
}

#[test]
fn errors_of_a_call_with_too_many_secrets_are_withheld() {
    let named = |count: usize| {
        let all: Vec<_> = (0..count).map(|one| format!("secret-number-{one}")).collect();
        nothing().call_secrets(&json!({ "tokens": all, "args": ["--token", "secret-number-1"] }))
    };
    let most = named(CALL_SECRETS_MAX);
    assert_eq!(most.values.len(), CALL_SECRETS_MAX);
    let CallError::InvalidInput { problems } = refused(&most) else { panic!("as it was") };
    assert_eq!(problems[0].message, "/a");
    assert_eq!(problems[1].message, "/b [redacted]");
    for many in [CALL_SECRETS_MAX + 1, 200_000] {
        let many = named(many);
        assert!(many.too_many && many.values.is_empty());
        let CallError::InvalidInput { problems } = refused(&many) else { panic!("as it was") };
        let withheld =
            ValidationProblem { pointer: String::new(), message: WITHHELD_MESSAGE.to_owned() };
        assert_eq!(problems, [withheld]);
    }
    let long = nothing().call_secrets(&json!({ "token": "x".repeat(CALL_SECRETS_BYTES_MAX + 1) }));
    assert!(long.too_many);
}

#[test]
fn a_long_argument_is_a_secret_only_after_a_short_name() {
    let long = "x".repeat(100);
    let call = json!({ "args": [format!("TOKEN={long}"), format!("{long}TOKEN=not-a-secret")] });
    assert_eq!(nothing().call_secrets(&call).values, [long]);
}

#[test]
fn secrets_of_a_prompt_are_found_by_the_names_of_its_arguments() {
    let arguments = [("api_key", " secret-one "), ("topic", "tokens")];
    let arguments = arguments.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let secrets = nothing().argument_secrets(&arguments.into());
    assert_eq!(secrets.values, ["secret-one"]);
}

#[test]
fn overlapping_secrets_of_server_and_call_leave_no_remainder() {
    let server = SecretSet::from_variables([("TOKEN", "abcdef-ghijkl")]);
    let call = nothing().call_secrets(&json!({ "token": "abcdef" }));
    let told = CallError::NotFound { message: "abcdef-ghijkl abcdef".to_owned() };
    let CallError::NotFound { message } = server.redact_error(&call, told) else {
        panic!("as it was")
    };
    assert_eq!(message, "[redacted] [redacted]");
}

#[test]
fn secrets_are_recognized_by_their_format() {
    let many = "a1B2".repeat(10);
    check(&format!("sk-{many} failed"), "[redacted] failed");
    check(&format!("(sk-ant-api03-{many})"), "([redacted])");
    check(&format!("ghp_{many}"), "[redacted]");
    check(&format!("a/github_pat_{many}/b"), "a/[redacted]/b");
    check("AKIAIOSFODNN7EXAMPLE", "[redacted]");
    check("xoxb-123456789012-abcdefABCDEF", "[redacted]");
    let jwt = format!("eyJ{many}.eyJ{many}.{many}");
    check(&format!("no {jwt}"), "no [redacted]");
    check("Authorization: Bearer abc.def-123", "Authorization: Bearer [redacted]");
    check("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic [redacted]");
    check("https://ada:hunter2@host/x", "https://ada:[redacted]@host/x");
    check("https://:hunter2@host/x", "https://:[redacted]@host/x");
    check("clone ada:hunter2@host:x", "clone ada:[redacted]@host:x");
    check("--token=hunter2 --verbose", "--token=[redacted] --verbose");
    check("-e DB_PASSWORD='hunter2'", "-e DB_PASSWORD='[redacted]'");
    check("curl --password hunter2 x", "curl --password [redacted] x");
    check(r#"{"api_key":"hunter2","a":1}"#, r#"{"api_key":"[redacted]","a":1}"#);
    check("?access_token=hunter2&a=1", "?access_token=[redacted]&a=1");
    check("pa\u{17f}\u{17f}word=hunter2", "pa\u{17f}\u{17f}word=[redacted]");
    check(
        "x -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- y",
        "x [redacted] y",
    );
}

#[test]
fn a_text_without_secrets_is_unchanged() {
    for text in [
        "`a.txt` could not be read",
        "no tool is named `fils.read`; did you mean `files.read`?",
        "the cursor is of another question; ask for the first page",
        "/token: it must be a string",
        "git@github.com:a/b.git is not there",
        "task-1 sk-short risk-averse-and-long-enough-to-be-one",
        "at 12:30 ada@example.com wrote",
        "unexpected token `=` at line 3",
    ] {
        assert!(
            matches!(nothing().redact(text), Cow::Borrowed(_)),
            "{text}: {}",
            nothing().redact(text)
        );
    }
}

#[test]
fn a_key_of_each_service_is_redacted_without_other_words() {
    let starts = [
        "sk-",
        "sk_live_",
        "sk_test_",
        "rk_live_",
        "rk_test_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "xoxb-",
        "AIza",
    ];
    let mut keys: Vec<_> =
        starts.into_iter().map(|start| format!("{start}abcdefghij0123456789ABCDEFGHIJ")).collect();
    keys.extend(["AKIA", "ASIA"].map(|start| format!("{start}ABCDEFGHIJ012345")));
    for key in keys {
        assert_eq!(nothing().redact(&key), "[redacted]", "{key}");
    }
}

proptest! {
    #[test]
    fn the_quick_check_skips_no_form_that_matches(
        parts in proptest::collection::vec(
            prop_oneof![
                "[ -~]{0,6}",
                proptest::sample::select(vec![
                    "sk-", "sk_live_", "rk_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "ASIA", "xoxb-", "AIza", "secret", "github_pat_", "to\u{212a}en=", "pa\u{17f}sword=", "AKIA", "eyJ", "Bearer ", "BASIC ", "://", "@", "=", "--", "\": \"", "_key",
                    "Token", "API-KEY", "passwd", "passphrase", "credential", "access_key_id", "\n",
                    "-----BEGIN PRIVATE KEY-----", "abcdefghij0123456789ABCDEFGHIJ",
                ])
                .prop_map(str::to_owned),
            ],
            0..8,
        ),
    ) {
        let text = parts.concat();
        prop_assert_eq!(nothing().redact(&text), FORMS.redact_unchecked(&text));
    }
}

#[test]
fn every_part_of_an_error_is_redacted() {
    let of_call = nothing().call_secrets(&json!({ "env": { "MY_TOKEN": "hunter2-hunter2" } }));
    let said = || "of hunter2-hunter2".to_owned();
    let problems = || vec![ValidationProblem { pointer: said(), message: said() }];
    let deep = || json!({ "a": [said()] });
    let wait = std::time::Duration::ZERO;
    for error in [
        CallError::UnknownTool { name: said(), nearest: None, unavailable: Some(said()) },
        CallError::InvalidInput { problems: problems() },
        CallError::NotAllowed { message: said() },
        CallError::Limited { message: said(), retry_after: wait },
        CallError::NotFound { message: said() },
        CallError::Conflict { message: said(), details: deep() },
        CallError::TooLarge { message: said() },
        CallError::Unavailable { message: said() },
        CallError::Failed { message: said(), cause: said() },
        CallError::Mismatch { message: said() },
        CallError::Refused { code: 1, message: said(), data: Some(deep()) },
        CallError::Scope { message: said(), needs: Vec::new() },
        CallError::InvalidOutput { problems: problems() },
        CallError::CannotAsk { kind: toolgate_contract::QuestionKind::Form, what: Some(said()) },
    ] {
        let clean = nothing().redact_error(&of_call, error);
        let written = format!("{clean:?}");
        assert!(!written.contains("hunter2") && written.contains(REDACTED), "{written}");
    }
}
