"""Speaks Qdrant's gRPC in front of the in-memory engine of Qdrant's own Python client.

No Qdrant server: that is a program of its own, which no package registry has. What is held here is
that requests are ones that Qdrant's own conversions can read, and that they mean what we think they
do to Qdrant's own model of its engine; not how a server indexes, nor what it does under load. Prints
the port it listens at.
"""

import argparse
from concurrent import futures

import grpc
from qdrant_client import QdrantClient
from qdrant_client import grpc as q
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc
from qdrant_client.grpc import collections_service_pb2_grpc as collections_rpc
from qdrant_client.grpc import points_service_pb2_grpc as points_rpc
from qdrant_client.grpc import qdrant_pb2_grpc as qdrant_rpc

arguments = argparse.ArgumentParser()
arguments.add_argument("--version", default="1.20.0", help="what it says it is")
arguments.add_argument("--key", help="the API key that it wants")
arguments = arguments.parse_args()
engine = QdrantClient(":memory:")


class WithKey(grpc.ServerInterceptor):
    """Lets in whoever has the key, and tells the others what Qdrant tells them."""

    def intercept_service(self, serve, call):
        if arguments.key in (None, dict(call.invocation_metadata).get("api-key")):
            return serve(call)

        def refuse(request, context):
            what = "Must provide an API key or an Authorization bearer token"
            context.abort(grpc.StatusCode.UNAUTHENTICATED, what)

        return grpc.unary_unary_rpc_method_handler(refuse)


def served(method):
    """What is wrong with a request is told as Qdrant tells it."""

    def serve(self, request, context):
        try:
            return method(self, request)
        except (ValueError, AssertionError, KeyError) as err:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{type(err).__name__}: {err}")

    return serve


def in_collection(method):
    """The same of what is asked of a collection, which must be there."""

    def serve(self, request, context):
        name = request.collection_name
        if not engine.collection_exists(name):
            context.abort(grpc.StatusCode.NOT_FOUND, f"Collection `{name}` doesn't exist!")
        return served(method)(self, request, context)

    return serve


def filtered(request, field="filter"):
    return GrpcToRest.convert_filter(getattr(request, field)) if request.HasField(field) else None


def with_payload(request):
    if not request.HasField("with_payload"):
        return True
    return GrpcToRest.convert_with_payload_interface(request.with_payload)


def with_vectors(request):
    if not request.HasField("with_vectors"):
        return False
    return GrpcToRest.convert_with_vectors_selector(request.with_vectors)


def told(record):
    # One that was not asked for is none, which the conversion does not know.
    record.payload = record.payload or {}
    return RestToGrpc.convert_record(record)


def done():
    return q.PointsOperationResponse(
        result=q.UpdateResult(operation_id=1, status=q.UpdateStatus.Completed), time=0.001
    )


class Collections(collections_rpc.CollectionsServicer):
    @served
    def CollectionExists(self, request):
        exists = engine.collection_exists(request.collection_name)
        return q.CollectionExistsResponse(result=q.CollectionExists(exists=exists))

    @served
    def Create(self, request):
        sparse = None
        if request.HasField("sparse_vectors_config"):
            sparse = GrpcToRest.convert_sparse_vector_config(request.sparse_vectors_config)
        engine.create_collection(
            request.collection_name,
            vectors_config=GrpcToRest.convert_vectors_config(request.vectors_config),
            sparse_vectors_config=sparse,
        )
        return q.CollectionOperationResponse(result=True)

    @in_collection
    def Get(self, request):
        found = engine.get_collection(request.collection_name).config.params
        params = q.CollectionParams(vectors_config=RestToGrpc.convert_vectors_config(found.vectors))
        info = q.CollectionInfo(config=q.CollectionConfig(params=params))
        return q.GetCollectionInfoResponse(result=info)

    @served
    def Delete(self, request):
        return q.CollectionOperationResponse(
            result=engine.delete_collection(request.collection_name)
        )


class Points(points_rpc.PointsServicer):
    @in_collection
    def Upsert(self, request):
        points = [GrpcToRest.convert_point_struct(point) for point in request.points]
        engine.upsert(request.collection_name, points)
        return done()

    @in_collection
    def Delete(self, request):
        engine.delete(request.collection_name, GrpcToRest.convert_points_selector(request.points))
        return done()

    @in_collection
    def UpdateVectors(self, request):
        points = [GrpcToRest.convert_point_vectors(point) for point in request.points]
        engine.update_vectors(request.collection_name, points)
        return done()

    @in_collection
    def CreateFieldIndex(self, request):
        GrpcToRest.convert_keyword_index_params(request.field_index_params.keyword_index_params)
        return done()

    @in_collection
    def Get(self, request):
        ids = [GrpcToRest.convert_point_id(point) for point in request.ids]
        found = engine.retrieve(
            request.collection_name, ids, with_payload(request), with_vectors(request)
        )
        return q.GetResponse(result=[told(record) for record in found])

    @in_collection
    def Count(self, request):
        found = engine.count(request.collection_name, filtered(request), exact=True)
        return q.CountResponse(result=q.CountResult(count=found.count))

    @in_collection
    def Scroll(self, request):
        offset = GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None
        found, after = engine.scroll(
            request.collection_name,
            filtered(request),
            limit=request.limit,
            offset=offset,
            with_payload=with_payload(request),
            with_vectors=with_vectors(request),
        )
        return q.ScrollResponse(
            result=[told(record) for record in found],
            next_page_offset=after and RestToGrpc.convert_extended_point_id(after),
        )

    @in_collection
    def Facet(self, request):
        limit = request.limit if request.HasField("limit") else 10
        found = engine.facet(
            request.collection_name, request.key, filtered(request), limit=limit, exact=True
        )
        return q.FacetResponse(hits=[RestToGrpc.convert_facet_value_hit(hit) for hit in found.hits])

    @in_collection
    def QueryBatch(self, request):
        answers = []
        for one in request.query_points:
            asked = GrpcToRest.convert_query_points(one)
            found = engine.query_points(
                request.collection_name,
                query=asked.query.nearest,
                using=asked.using,
                query_filter=asked.filter,
                limit=asked.limit,
                with_payload=asked.with_payload,
                with_vectors=asked.with_vector,
            )
            points = [RestToGrpc.convert_scored_point(point) for point in found.points]
            answers.append(q.BatchResult(result=points))
        return q.QueryBatchResponse(result=answers)


class Qdrant(qdrant_rpc.QdrantServicer):
    def HealthCheck(self, request, context):
        return q.HealthCheckReply(title="in memory", version=arguments.version)


# The engine is of one thread.
server = grpc.server(futures.ThreadPoolExecutor(max_workers=1), interceptors=[WithKey()])
collections_rpc.add_CollectionsServicer_to_server(Collections(), server)
points_rpc.add_PointsServicer_to_server(Points(), server)
qdrant_rpc.add_QdrantServicer_to_server(Qdrant(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
