//! Tests of the checks that every call passes: offered tools, admission, limits, policy and audit
//! records.

mod records;
mod audit;
mod facts;
mod hidden;
mod instructions;
mod secrets;
mod bounds;
mod changes;
mod offers;
mod policy;
mod limits;
mod schemas;
