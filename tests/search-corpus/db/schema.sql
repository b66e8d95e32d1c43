CREATE TABLE users (
    id BIGSERIAL PRIMARY KEY,
    email TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    last_seen TIMESTAMPTZ
);

CREATE TABLE invoices (
    id BIGSERIAL PRIMARY KEY,
    user_id BIGINT NOT NULL REFERENCES users (id),
    cents BIGINT NOT NULL,
    paid_at TIMESTAMPTZ
);

CREATE INDEX invoices_unpaid ON invoices (user_id) WHERE paid_at IS NULL;
