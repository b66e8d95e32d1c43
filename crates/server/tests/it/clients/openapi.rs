//! Compares the REST API with its OpenAPI description, by the program schemathesis.

use crate::support::run_judge;

#[test]
fn schemathesis_finds_no_answer_that_the_openapi_document_does_not_describe() {
    run_judge("openapi.py", &["--cases", "50"]);
}
