//! Tests of the five dialect contracts by requirement. The name of a test begins with the numbers
//! of the requirements that it covers.

mod malformed;
mod s0;
mod s0_judges;
mod s1;
mod s2;
mod s3;
mod s4;
mod x;
