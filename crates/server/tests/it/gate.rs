//! The gate: what is offered, admitted, bounded, checked and recorded.

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
