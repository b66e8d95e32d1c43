//! Example tools that name each of their questions with a key. Clients repeat the call with the
//! answers by key.

use serde_json::{Value, json};
use toolgate_contract::{
    ClientQuestion, ClientQuestions, Effects, ElicitationAnswer, NoInput, QuestionKind,
    SamplingRequest, Tool, ToolContext, ToolError, UnstructuredResult,
};
use toolgate_service::ServerBuilder;

/// Adds the tools of this module to `builder`.
pub(crate) fn add(builder: ServerBuilder) -> ServerBuilder {
    builder
        .tool(ElicitationRoundTool)
        .tool(SamplingRoundTool)
        .tool(ListRootsTool)
        .tool(RequestStateTool)
        .tool(TamperedStateTool)
        .tool(ThreeQuestionKindsTool)
        .tool(MultiRoundTool)
        .tool(ClientCapabilitiesTool)
}

/// Returns the JSON schema of a form with the required field `name` of the type `kind`.
pub(crate) fn one_field(name: &str, kind: &str) -> Value {
    json!({ "type": "object", "properties": { name: { "type": kind } }, "required": [name] })
}

/// Returns the text of the form field `name`, or `None` if the person did not fill in the form.
pub(crate) fn field(choice: &ElicitationAnswer, name: &str) -> Option<String> {
    match choice {
        ElicitationAnswer::Accepted(content) => Some(content.get(name)?.as_str()?.to_owned()),
        ElicitationAnswer::Declined | ElicitationAnswer::Canceled => None,
    }
}

struct ElicitationRoundTool;

impl Tool for ElicitationRoundTool {
    const NAME: &'static str = "test_input_required_result_elicitation";
    const TITLE: &'static str = "Asks for a name";
    const DESCRIPTION: &'static str = "Greets the person by name.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let form = one_field("name", "string");
        let choice = ctx.ask_form("user_name", "What is your name?", form).await?;
        let name = field(&choice, "name").unwrap_or_else(|| "stranger".to_owned());
        Ok(UnstructuredResult::text(format!("Hello, {name}!")))
    }
}

struct SamplingRoundTool;

impl Tool for SamplingRoundTool {
    const NAME: &'static str = "test_input_required_result_sampling";
    const TITLE: &'static str = "Asks the model";
    const DESCRIPTION: &'static str = "Asks the client's model for the capital of France.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let sampling = SamplingRequest::from_text("What is the capital of France?", 100);
        Ok(UnstructuredResult::text(ctx.ask_model("capital_question", sampling).await?.text))
    }
}

struct ListRootsTool;

impl Tool for ListRootsTool {
    const NAME: &'static str = "test_input_required_result_list_roots";
    const TITLE: &'static str = "Asks for folders";
    const DESCRIPTION: &'static str = "Lists the folders that the client works in.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let roots = ctx.ask_roots("client_roots").await?;
        let uris: Vec<_> = roots.iter().map(|root| root.uri.as_str()).collect();
        Ok(UnstructuredResult::text(format!("The client works in {}", uris.join(", "))))
    }
}

struct RequestStateTool;

impl Tool for RequestStateTool {
    const NAME: &'static str = "test_input_required_result_request_state";
    const TITLE: &'static str = "Keeps its state at the client";
    const DESCRIPTION: &'static str =
        "Asks for a confirmation. The client keeps its state meanwhile.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.ask_form("confirm", "Please confirm", one_field("ok", "boolean")).await?;
        // A state that the server did not issue is refused before this line.
        Ok(UnstructuredResult::text("state-ok"))
    }
}

struct TamperedStateTool;

impl Tool for TamperedStateTool {
    const NAME: &'static str = "test_input_required_result_tampered_state";
    const TITLE: &'static str = "Refuses a changed state";
    const DESCRIPTION: &'static str =
        "Asks for a confirmation. A client that changes the state is refused.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        ctx.ask_form("confirm", "Please confirm", one_field("ok", "boolean")).await?;
        Ok(UnstructuredResult::text("The state is unchanged"))
    }
}

struct ThreeQuestionKindsTool;

impl Tool for ThreeQuestionKindsTool {
    const NAME: &'static str = "test_input_required_result_multiple_inputs";
    const TITLE: &'static str = "Asks three things at once";
    const DESCRIPTION: &'static str = "Asks the person, the model and for folders at once.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let form = ClientQuestion::Form {
            message: "What is your name?".to_owned(),
            schema: one_field("name", "string"),
        };
        let sample =
            ClientQuestion::Sample(Box::new(SamplingRequest::from_text("Generate a greeting", 50)));
        let answers = ctx
            .asker
            .ask(ClientQuestions::from([
                ("user_name".to_owned(), form),
                ("greeting".to_owned(), sample),
                ("client_roots".to_owned(), ClientQuestion::Roots),
            ]))
            .await?;
        let keys: Vec<_> = answers.keys().map(String::as_str).collect();
        Ok(UnstructuredResult::text(format!("Answered: {}", keys.join(", "))))
    }
}

struct MultiRoundTool;

impl Tool for MultiRoundTool {
    const NAME: &'static str = "test_input_required_result_multi_round";
    const TITLE: &'static str = "Asks twice";
    const DESCRIPTION: &'static str = "Asks for a name, and then for a color.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let form = one_field("name", "string");
        let name = ctx.ask_form("step1", "Step 1: What is your name?", form).await?;
        let form = one_field("color", "string");
        let color = ctx.ask_form("step2", "Step 2: What is your favorite color?", form).await?;
        let (name, color) = (field(&name, "name"), field(&color, "color"));
        let or_unknown = |answer: Option<String>| answer.unwrap_or_else(|| "(unknown)".to_owned());
        Ok(UnstructuredResult::text(format!("{} likes {}", or_unknown(name), or_unknown(color))))
    }
}

struct ClientCapabilitiesTool;

impl Tool for ClientCapabilitiesTool {
    const NAME: &'static str = "test_input_required_result_capabilities";
    const TITLE: &'static str = "Asks what the client supports";
    const DESCRIPTION: &'static str = "Asks every kind of question that the client supports.";
    const EFFECTS: Effects = Effects::Reads;
    type Input = NoInput;
    type Output = UnstructuredResult;

    async fn run(&self, ctx: &ToolContext, _input: NoInput) -> Result<Self::Output, ToolError> {
        let form = ClientQuestion::Form {
            message: "What is your name?".to_owned(),
            schema: one_field("name", "string"),
        };
        let sample =
            ClientQuestion::Sample(Box::new(SamplingRequest::from_text("Generate a greeting", 50)));
        let all =
            [(QuestionKind::Form, "user_name", form), (QuestionKind::Sample, "greeting", sample)];
        let supported = ctx.asker.supported();
        let questions: ClientQuestions = all
            .into_iter()
            .filter(|(kind, ..)| supported.supports(*kind))
            .map(|(_, key, question)| (key.to_owned(), question))
            .collect();
        let answers = ctx.asker.ask(questions).await?;
        Ok(UnstructuredResult::text(format!("Answered: {}", answers.len())))
    }
}
