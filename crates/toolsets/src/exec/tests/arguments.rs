//! Tests that programs receive arguments and standard input as data, never as code.

use serde_json::json;

use super::{ExecTestBench, pointer};

#[tokio::test]
async fn shell_metacharacters_in_arguments_are_data() {
    let bench = ExecTestBench::new();
    let evil = bench.forbidden();
    for argument in [
        format!("a; touch {evil}"),
        format!("$(touch {evil}) `touch {evil}`"),
        format!("a\ntouch {evil}"),
        format!("<(touch {evil}) | tee {evil} && > {evil}"),
        "*  \"quoted\" 'and' \\ $HOME ~".to_owned(),
    ] {
        let ran = bench.run(json!({"command": "printf", "args": ["%s", argument]})).await;
        assert_eq!(ran.expect("printf runs").stdout(), argument);
    }
    assert!(!bench.outside.path().join("touched").exists());
}

#[tokio::test]
async fn a_command_without_a_shell_is_not_split_or_expanded() {
    let bench = ExecTestBench::new();
    let evil = bench.forbidden();
    for command in [
        "\"touch\"".to_owned(),
        "tou*".to_owned(),
        "$T".to_owned(),
        format!("echo ok\ntouch {evil}"),
        format!("touch {evil}"),
    ] {
        let err = bench.run(json!({"command": command, "args": [evil]})).await.unwrap_err();
        assert_eq!(pointer(&err), Some("/command"), "{}", err.message);
    }
    assert!(!bench.outside.path().join("touched").exists());
}

#[tokio::test]
async fn the_arguments_of_a_script_are_data() {
    let bench = ExecTestBench::new();
    let input = json!({"command": "echo \"$1\" | tr a-z A-Z", "args": ["$(id) x"], "shell": true});
    assert_eq!(bench.run(input).await.expect("it runs").stdout(), "$(ID) X\n");
}

#[tokio::test]
async fn a_variable_is_expanded_only_by_a_shell() {
    let bench = ExecTestBench::new();
    let plain = bench.run(json!({"command": "echo", "args": ["$HOME"]})).await;
    assert_eq!(plain.expect("it runs").stdout(), "$HOME\n");
    let script = bench.run(json!({"command": "echo $X", "shell": true, "env": {"X": "y"}})).await;
    assert_eq!(script.expect("it runs").stdout(), "y\n");
}

#[tokio::test]
async fn a_program_reads_the_given_standard_input_to_its_end() {
    let bench = ExecTestBench::new();
    let ran = bench.run(json!({"command": "cat", "stdin": "one\ntwo"})).await;
    assert_eq!(ran.expect("cat runs").stdout(), "one\ntwo");
}

#[tokio::test]
async fn standard_input_is_empty_by_default() {
    let bench = ExecTestBench::new();
    let ran = bench.run(json!({"command": "cat", "timeout_ms": 5000})).await.expect("cat runs");
    assert_eq!((ran.exit_code(), ran.stdout()), (0, ""));
}

#[tokio::test]
async fn standard_input_larger_than_a_pipe_neither_blocks_nor_is_lost() {
    let bench = ExecTestBench::new();
    let text = "0123456789abcde\n".repeat(1 << 16);
    let ran =
        bench.run(json!({"command": "cat", "stdin": text, "max_output_bytes": 1 << 20})).await;
    assert!(ran.expect("cat runs").stdout() == text);
    for command in ["true", "sleep 0.2", "exec <&-; sleep 0.2"] {
        let input = json!({"command": command, "shell": true, "stdin": text});
        assert_eq!(bench.run(input).await.expect("it runs").exit_code(), 0, "{command}");
    }
}

#[tokio::test]
async fn a_nul_character_is_refused_with_its_pointer() {
    let bench = ExecTestBench::new();
    for (input, expected) in [
        (json!({"command": "a\0b"}), "/command"),
        (json!({"command": "a\0b", "shell": true}), "/command"),
        (json!({"command": "echo", "args": ["a", "b\0"]}), "/args/1"),
        (json!({"command": "echo", "env": {"A/B~": "\0"}}), "/env/A~1B~0"),
        (json!({"command": "echo", "cwd": "a\0"}), "/cwd"),
    ] {
        let err = bench.run(input).await.unwrap_err();
        assert_eq!(pointer(&err), Some(expected), "{}", err.message);
    }
}

#[tokio::test]
async fn arguments_too_long_for_the_kernel_are_refused() {
    let bench = ExecTestBench::new();
    let input = json!({"command": "echo", "args": ["x".repeat(3 << 20)]});
    let err = bench.run(input).await.unwrap_err();
    assert_eq!(pointer(&err), Some("/args"), "{}", err.message);
}
