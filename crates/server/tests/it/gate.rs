//! The gate: what is offered, admitted, bounded, checked and recorded.

mod records;
mod bounds;
mod offers;
mod schemas;
