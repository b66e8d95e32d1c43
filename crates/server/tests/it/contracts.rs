//! The five contracts, requirement by requirement: a test's name begins with the rows it covers.

mod malformed;
mod s0;
mod s0_judges;
mod s1;
mod s2;
mod s3;
mod s4;
mod x;
